"""vLLM: DeepGEMM kernels that its warm-up does not visit: indexer logits and DeepSeek-V4's einsum.

Paths in the rules are inside the package vllm of 0.33.
"""

from __future__ import annotations

from pipeline.workload.blocks import Attention
from pipeline.workload.blocks.compressed import CompressedAttention
from pipeline.workload.blocks.latent import LatentAttention
from pipeline.workload.problems import Kernel, MList, Options
from pipeline.workload.servers.rules import Deployment

# utils/deep_gemm.py native_next_n_supported: query tokens of one request that the sm_90 kernel takes together.
NATIVE_NEXT_N = (1, 2, 4)

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
    rule = "model_executor/layers/sparse_attn_indexer.py"
    per_request = at.server.tokens_per_request
    # Where the kernel does not take the tokens of a request together, each is a row of its own.
    is_native = at.is_sm90 and per_request in NATIVE_NEXT_N
    rows = MList.up_to(decode_batch * (1 if is_native else per_request))
    found: list[Found] = [(Kernel.MQA_LOGITS, heads, head, 1, prefill, (), f"{rule}: prefill")]
    for tokens in sorted({1, per_request if is_native else 1}):
        options: Options = (("next_n", tokens),)
        found.append((Kernel.PAGED_MQA_LOGITS, heads, head, 1, rows, options, f"{rule}: decode"))
        found.append((Kernel.PAGED_MQA_METADATA, 1, 1, 1, rows, options, f"{rule}: schedule"))
    return found
