"""SGLang 0.5.23: which quantised linears DeepGEMM serves, and why it does not serve the others.

Paths in the rules are inside the package sglang/srt of that version.
"""

from __future__ import annotations

from pipeline.servers.sglang.deployment import SglangDeployment
from pipeline.servers.sglang.flags import AttentionBackend, DenseBackend
from pipeline.servers.shared.problems import Kernel
from pipeline.workload.blocks.latent import LatentAttention
from pipeline.workload.linears import Linear
from pipeline.workload.model import ModelFacts
from pipeline.workload.scheme import PLAIN, Format

Block = tuple[int, int]
DEEPGEMM_BLOCK: Block = (128, 128)
BLOCK32: Block = (32, 32)
MXFP8_BLOCK: Block = (1, 32)
# (N, K) multiples of each kind of scale block.
MULTIPLES: dict[Block, tuple[int, int]] = {DEEPGEMM_BLOCK: (64, 128), BLOCK32: (8, 32), MXFP8_BLOCK: (1, 128)}
KERNELS: dict[Block, Kernel] = {BLOCK32: Kernel.DENSE_BLOCK32, MXFP8_BLOCK: Kernel.DENSE_MXFP8}
ON_DEEPGEMM = (DenseBackend.auto, DenseBackend.deep_gemm, DenseBackend.flashinfer_deepgemm)
HALF = ("float16", "float32")
DETERMINISTIC = (AttentionBackend.auto, AttentionBackend.fa3, AttentionBackend.fa4, AttentionBackend.triton)
BATCH_INVARIANT = "batch_invariant_ops/batch_invariant_ops.py _matmul_persistent_deepgemm"
# matmul_persistent: narrower products stay with Triton.
LEAST_BF16_N = 16
SOURCE = "layers/quantization/fp8_utils.py _deepgemm_block_fp8_supported"


def kv_up_reason(deployment: SglangDeployment) -> str | None:
    """Why prefill absorbs kv_b_proj, or None when it launches it."""
    source = "models/deepseek_common/attention_backend_handler.py"
    if deployment.parallel.attn_cp > 1:
        return f"context parallel prefill absorbs kv_b_proj ({source})"
    if deployment.server.enable_deterministic_inference and deployment.server.attention_backend in DETERMINISTIC:
        return f"deterministic inference absorbs kv_b_proj ({source})"
    return None


def fuses_index_key(facts: ModelFacts) -> bool:
    """Whether the indexer's wk is one bf16 product with weights_proj: where its positions are interleaved."""
    kinds = facts.attentions(range(facts.num_layers))
    indexers = [kind.indexer for kind in kinds if isinstance(kind, LatentAttention)]
    return any(indexer.interleaved_rope for indexer in indexers if indexer is not None)


def is_batch_invariant(deployment: SglangDeployment, linear: Linear) -> bool:
    """Whether deterministic inference gives an unquantised linear to DeepGEMM."""
    is_plain = linear.scheme.format is Format.PLAIN
    return deployment.server.enable_deterministic_inference and is_plain and linear.n >= LEAST_BF16_N


def unquantised_reason(deployment: SglangDeployment, linear: Linear) -> str | None:
    """Why the linear is not quantised, or None when it is."""
    if linear.scheme.format is not Format.PLAIN:
        return None
    if linear.scheme != PLAIN:
        return linear.scheme.text
    if deployment.quantization.method is None:
        return f"the checkpoint is not quantised, DeepGEMM takes FP8 with 128x128 scale blocks ({SOURCE})"
    return "the checkpoint keeps it unquantised (modules_to_not_convert, ignored_layers)"


def block_reason(deployment: SglangDeployment, linear: Linear) -> str | None:
    """Why another kernel serves a linear of these scale blocks and this size, or None."""
    block = linear.scheme.block
    if deployment.facts.dtype in HALF:
        # SGLang downcasts float32 to float16 (configs/model_config.py _get_and_verify_dtype).
        dtype = deployment.facts.dtype
        return f"the checkpoint's dtype is {dtype}, and DeepGEMM's dense product gives bfloat16 ({SOURCE})"
    if block == BLOCK32 and deployment.is_sm100 and deployment.server.fp8_gemm_backend is not DenseBackend.deep_gemm:
        return f"32x32 scale blocks on sm_100 need server.fp8_gemm_backend=deep_gemm ({SOURCE})"
    if block == MXFP8_BLOCK and not deployment.is_sm100:
        return "MXFP8 needs sm_100 (layers/quantization/fp8.py)"
    if block not in MULTIPLES:
        return f"weights are {linear.scheme.text}, not FP8 with 128x128 scale blocks ({SOURCE})"
    return cut_reason(linear, MULTIPLES[block])


def cut_reason(linear: Linear, multiples: tuple[int, int]) -> str | None:
    """Why DeepGEMM refuses a shard of this size, or None."""
    if linear.n % multiples[0] != 0:
        return f"N {linear.n} is not a multiple of {multiples[0]}, Triton serves it ({SOURCE})"
    if linear.k % multiples[1] != 0:
        return f"K {linear.k} is not a multiple of {multiples[1]}, Triton serves it ({SOURCE})"
    return None
