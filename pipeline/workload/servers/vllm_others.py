"""vLLM: DeepGEMM kernels that its warm-up does not visit: indexer logits and DeepSeek-V4's einsum.

Paths in the rules are inside the package vllm of 0.33.
"""

from __future__ import annotations

from pipeline.workload.blocks import Attention
from pipeline.workload.blocks.compressed import CompressedAttention
from pipeline.workload.blocks.latent import LatentAttention
from pipeline.workload.problems import Kernel, MList, Options
from pipeline.workload.servers.rules import Deployment

# deep_gemm's sm_90 kernel scores one or two query tokens of a request.
MOST_NEXT_N_SM90 = 2

Found = tuple[Kernel, int, int, int, MList, Options, str]


def attention_kernels(at: Deployment, attention: Attention, prefill: MList, decode_batch: int) -> list[Found]:
    """What one kind of attention launches besides its linears."""
    if isinstance(attention, CompressedAttention):
        groups, n, k = attention.output_groups(at.parallel.attn_tp)
        found: list[Found] = [(Kernel.EINSUM, n, k, groups, prefill, (), "models/deepseek_v4/nvidia: wo_a")]
        if attention.is_indexed:
            found += _index_kernels(at, attention.index_heads, attention.index_head, prefill, decode_batch)
        return found
    if isinstance(attention, LatentAttention) and attention.indexer is not None:
        return _index_kernels(at, attention.indexer.heads, attention.indexer.head, prefill, decode_batch)
    return []


def _index_kernels(at: Deployment, heads: int, head: int, prefill: MList, decode_batch: int) -> list[Found]:
    rule, per_request = "model_executor/layers/sparse_attn_indexer.py", at.server.tokens_per_request
    next_n = per_request if at.is_sm100 else min(per_request, MOST_NEXT_N_SM90)
    found: list[Found] = [(Kernel.MQA_LOGITS, heads, head, 1, prefill, (), f"{rule}: prefill")]
    for tokens in sorted({1, next_n}):
        options: Options = (("next_n", tokens),)
        found.append((Kernel.PAGED_MQA_LOGITS, heads, head, 1, MList.up_to(decode_batch), options, f"{rule}: decode"))
    rows = MList.up_to(decode_batch * per_request)
    found.append((Kernel.PAGED_MQA_METADATA, 1, 1, 1, rows, (), f"{rule}: schedule"))
    return found
