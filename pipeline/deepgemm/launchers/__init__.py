"""How each kernel is launched at M rows: one function for each, found by the kernel."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.deepgemm.launch_spec import LaunchSpec
from pipeline.deepgemm.launchers import indexer, products
from pipeline.deepgemm.launchers.operands import Launch, NotInLibrary
from pipeline.servers.shared.problems import Kernel

__all__ = ["LAUNCHERS", "Launch", "NotInLibrary"]

LAUNCHERS: dict[Kernel, Callable[[LaunchSpec], Launch]] = {
    Kernel.DENSE: products.dense,
    Kernel.DENSE_BLOCK32: products.dense,
    Kernel.DENSE_MXFP8: products.mxfp8,
    Kernel.MASKED: products.masked,
    Kernel.CONTIGUOUS: products.contiguous,
    Kernel.BF16_DENSE: products.bf16_dense,
    Kernel.BF16_MASKED: products.bf16_masked,
    Kernel.BF16_CONTIGUOUS: products.bf16_contiguous,
    Kernel.FP4_MASKED: products.fp4_masked,
    Kernel.FP4_CONTIGUOUS: products.fp4_contiguous,
    Kernel.EINSUM: products.einsum,
    Kernel.HC_PRENORM: products.hc_prenorm,
    Kernel.MQA_LOGITS: indexer.mqa_logits,
    Kernel.PAGED_MQA_LOGITS: indexer.paged_mqa_logits,
    Kernel.PAGED_MQA_METADATA: indexer.paged_mqa_metadata,
}
