"""How each kernel is launched at M rows: one function for each, found by the kernel's name."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.deepgemm.launchers import indexer, products
from pipeline.deepgemm.launchers.operands import Launch, NotInLibrary, Options

__all__ = ["LAUNCHERS", "NotInLibrary"]

# (n, k, groups, largest M, options) to what launches it.
LAUNCHERS: dict[str, Callable[[int, int, int, int, Options], Launch]] = {
    "GEMM_NT_F8F8BF16": products.dense,
    "GEMM_NT_F8F8BF16_BLOCK32": products.dense,
    "GEMM_NT_MXFP8": products.mxfp8,
    "GROUPED_GEMM_NT_F8F8BF16_MASKED": products.masked,
    "GROUPED_GEMM_NT_F8F8BF16_CONTIG": products.contiguous,
    "BF16_GEMM_NN": products.bf16_dense,
    "GROUPED_GEMM_NT_BF16_MASKED": products.bf16_masked,
    "GROUPED_GEMM_NT_BF16_CONTIG": products.bf16_contiguous,
    "GROUPED_GEMM_NT_F8F4BF16_MASKED": products.fp4_masked,
    "GROUPED_GEMM_NT_F8F4BF16_CONTIG": products.fp4_contiguous,
    "FP8_EINSUM": products.einsum,
    "TF32_HC_PRENORM_GEMM": products.hc_prenorm,
    "FP8_MQA_LOGITS": indexer.mqa_logits,
    "FP8_PAGED_MQA_LOGITS": indexer.paged_mqa_logits,
    "PAGED_MQA_LOGITS_METADATA": indexer.paged_mqa_metadata,
}
