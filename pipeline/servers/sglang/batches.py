"""SGLang 0.5.23: how many tokens and requests its runners hold, and what a dummy run must be a multiple of.

Paths are inside the package sglang/srt of that version.
"""

from __future__ import annotations

import math

from pipeline.servers.sglang.flags import MoeRunner, SglangFlags
from pipeline.target import Target
from pipeline.workload.parallel import Parallel

GIB = 1 << 30
# arg_groups/memory_hook.py: (memory below this, chunked prefill size, decode graph batch, the same for tp >= 4).
MEMORY_CLASSES = (
    (20 * GIB, 2048, 8, 8),
    (35 * GIB, 4096, 48, 160),
    (60 * GIB, 4096, 32, 160),
    (90 * GIB, 8192, 256, 512),
    (160 * GIB, 8192, 256, 512),
)
LARGEST_CLASS = (16384, 512, 512)
# SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK, its default.
DISPATCH_TOKENS_PER_RANK = 128
# model_executor/runner/flashinfer_autotune.py should_run_flashinfer_autotune, the MoE consumers.
AUTOTUNED_RUNNERS = (
    MoeRunner.flashinfer_cutlass,
    MoeRunner.flashinfer_cutedsl,
    MoeRunner.flashinfer_trtllm,
    MoeRunner.flashinfer_trtllm_routed,
    MoeRunner.flashinfer_mxfp4,
)


def default_chunk(server: SglangFlags, parallel: Parallel, target: Target) -> int:
    """Prefill tokens of one chunk on one rank: attention DP divides the flag (arg_groups/parallel_hook.py)."""
    chunk = server.chunked_prefill_size
    if chunk is None:
        chunk = _memory_class(target)[0]
    return chunk if chunk < 1 else max(1, chunk // parallel.attn_dp)


def default_decode_batch(server: SglangFlags, parallel: Parallel, target: Target) -> int:
    """The decode graph's largest batch (arg_groups/memory_hook.py)."""
    if server.cuda_graph_max_bs is not None:
        return server.cuda_graph_max_bs
    _, small, large = _memory_class(target)
    return large if parallel.tp >= 4 else small


def requires_mlp_sync(parallel: Parallel) -> bool:
    """Whether ranks gather their tokens for the feed-forward part (utils/common.py require_mlp_sync)."""
    return parallel.attn_dp > 1 or parallel.moe_a2a_backend.is_used or parallel.moe_dense_tp_size is not None


def cp_padding(parallel: Parallel) -> int:
    """What context parallel pads a batch to; zigzag doubles it, and a multiple of that suits both layouts."""
    return 1 if parallel.attn_cp == 1 else 2 * parallel.attn_cp


def batch_multiple(parallel: Parallel) -> int:
    """What a dummy run's batch is rounded up to: lcm, because rounding to one after the other misses the first."""
    attn_tp = parallel.attn_tp if requires_mlp_sync(parallel) else 1
    return math.lcm(cp_padding(parallel), attn_tp)


def counts_unpadded_tokens(parallel: Parallel) -> bool:
    """Whether num_token_non_padded exists (forward_batch_info.py enable_num_token_non_padded)."""
    return parallel.effective_ep > 1 or parallel.moe_a2a_backend.is_used


def masked_rows(batch: int, parallel: Parallel) -> int:
    """Rows that each expert's block holds in the masked layout for a decode step of `batch` tokens."""
    if parallel.moe_a2a_backend.is_used:
        return parallel.effective_ep * DISPATCH_TOKENS_PER_RANK
    return (batch // 256 + 1) * 256


def nothing_to_autotune(server: SglangFlags) -> str | None:
    """Why this server runs no FlashInfer autotune (runner/flashinfer_autotune.py should_run_flashinfer_autotune)."""
    if server.moe_runner_backend in AUTOTUNED_RUNNERS:
        return None
    return (
        "SGLang tunes FlashInfer only for a FlashInfer MoE runner or an FP4/FP8 FlashInfer GEMM backend; "
        f"server.moe_runner_backend={server.moe_runner_backend.name} is no FlashInfer runner, and dense layers are on "
        "DeepGEMM"
    )


def _memory_class(target: Target) -> tuple[int, int, int]:
    for below, chunk, small, large in MEMORY_CLASSES:
        if target.memory_bytes < below:
            return chunk, small, large
    return LARGEST_CLASS
