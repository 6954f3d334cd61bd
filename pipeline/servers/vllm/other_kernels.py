"""vLLM: DeepGEMM kernels that its warm-up does not visit: indexer logits and DeepSeek-V4's einsum.

Paths in the rules are inside the package vllm of 0.33.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.servers.shared.problems import Kernel, MList, Options, Problem
from pipeline.servers.shared.standalone import StandaloneKernel, residual_mixing
from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.workload.blocks import Attention
from pipeline.workload.blocks.compressed import CompressedAttention
from pipeline.workload.blocks.latent import LatentAttention

# utils/deep_gemm.py native_next_n_supported: query tokens of one request that the sm_90 kernel takes together.
NATIVE_NEXT_N = (1, 2, 4)
INDEXER = "model_executor/layers/sparse_attn_indexer.py"


def standalone_problems(
    deployment: VllmDeployment, layers: Sequence[int], ranks: Sequence[int], *, chunk: int, decode_batch: int
) -> list[Problem]:
    """What these layers launch besides their linears."""
    prefill = MList.up_to(chunk)
    problems: list[Problem] = []
    for attention, members in deployment.facts.attentions(layers).items():
        kernels = _attention_kernels(deployment, attention, prefill, decode_batch)
        problems += [kernel.problem("self_attn", members, ranks) for kernel in kernels]
    if deployment.facts.streams > 1:
        kernels = residual_mixing(deployment, prefill, "models/deepseek_v4/nvidia")
        problems += [kernel.problem("hc_pre", layers, ranks) for kernel in kernels]
    return problems


def _attention_kernels(
    deployment: VllmDeployment, attention: Attention, prefill: MList, decode_batch: int
) -> list[StandaloneKernel]:
    """What one kind of attention launches besides its linears."""
    if isinstance(attention, CompressedAttention):
        groups, n, k = attention.output_groups(deployment.parallel.attn_tp)
        rule = "models/deepseek_v4/nvidia: wo_a"
        kernels = [StandaloneKernel(kernel=Kernel.EINSUM, n=n, k=k, groups=groups, m=prefill, rule=rule)]
        if attention.is_indexed:
            heads = (attention.index_heads, attention.index_head)
            kernels += _index_kernels(deployment, heads, prefill, decode_batch)
        return kernels
    if isinstance(attention, LatentAttention) and attention.indexer is not None:
        heads = (attention.indexer.heads, attention.indexer.head)
        return _index_kernels(deployment, heads, prefill, decode_batch)
    return []


def _index_kernels(
    deployment: VllmDeployment, heads: tuple[int, int], prefill: MList, decode_batch: int
) -> list[StandaloneKernel]:
    """`heads` is (number of heads, their size)."""
    num_heads, head = heads
    per_request = deployment.server.tokens_per_request
    # Where the kernel does not take the tokens of a request together, each is a row of its own.
    is_native = deployment.is_sm90 and per_request in NATIVE_NEXT_N
    rows = MList.up_to(decode_batch * (1 if is_native else per_request))
    kernels = [StandaloneKernel(kernel=Kernel.MQA_LOGITS, n=num_heads, k=head, m=prefill, rule=f"{INDEXER}: prefill")]
    for tokens in sorted({1, per_request if is_native else 1}):
        options: Options = (("next_n", tokens),)
        kernels += [
            StandaloneKernel(
                kernel=Kernel.PAGED_MQA_LOGITS,
                n=num_heads,
                k=head,
                m=rows,
                options=options,
                rule=f"{INDEXER}: decode",
            ),
            StandaloneKernel(
                kernel=Kernel.PAGED_MQA_METADATA, n=1, k=1, m=rows, options=options, rule=f"{INDEXER}: schedule"
            ),
        ]
    return kernels
