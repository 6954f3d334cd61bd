"""SGLang 0.5.23: DeepGEMM kernels that no sweep visits: indexer logits, einsum, residual mixing, fewer SMs.

Paths in the rules are inside the package sglang of that version.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.arithmetic import round_up
from pipeline.servers.sglang.dense import BATCH_INVARIANT
from pipeline.servers.sglang.deployment import SglangDeployment
from pipeline.servers.sglang.flags import PdRole
from pipeline.servers.sglang.m_lists import LARGEST_M_MAX
from pipeline.servers.sglang.model_classes import class_of
from pipeline.servers.shared.problems import Kernel, MList, Options, Problem
from pipeline.servers.shared.standalone import StandaloneKernel, residual_mixing
from pipeline.workload.blocks.compressed import CompressedAttention
from pipeline.workload.blocks.latent import Indexer, LatentAttention
from pipeline.workload.linears import Linear, NotDeepGemm, Role
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import A2A

# dsa_indexer.py: fewer heads are padded to this many.
LEAST_INDEX_HEADS = 32
# dsa_indexer.py: in a captured graph of at most this many tokens, wq_b runs on half of the SMs, rounded up to 8.
DUAL_STREAM_TOKENS = 1024
DUAL_STREAM_SM_STEP = 8
# operations_strategy.py leaves DeepEP's own number of SMs to the dispatcher; DeepEP's default.
DEEPEP_SMS = 20
# single_batch_overlap.py: SMs that the combine keeps.
COMBINE_SMS = 3
COMBINE_SMS_SM100 = 32
# models/deepseek_v4.py: prefill of this many queries and more scores its keys without pages.
NONPAGED_QUERIES = 8192
# layers/vocab_parallel_embedding.py.
VOCAB_PADDING = 64


def standalone_problems(
    deployment: SglangDeployment, layers: Sequence[int], prefill: MList, decode_batch: int, *, is_last: bool
) -> list[Problem]:
    """What these layers launch besides their linears; ranks are left to the caller.

    `prefill`: numbers of tokens of one step; `decode_batch`: most requests of one.
    """
    problems: list[Problem] = []
    for attention, members in deployment.facts.attentions(layers).items():
        if isinstance(attention, LatentAttention) and attention.indexer is not None:
            kernels = _index_kernels(deployment, attention.indexer, prefill, decode_batch, is_last=is_last)
            problems += [kernel.problem("self_attn.indexer", members) for kernel in kernels]
        if isinstance(attention, CompressedAttention):
            kernels = _compressed(deployment, attention, prefill, decode_batch)
            problems += [kernel.problem("self_attn", members) for kernel in kernels]
    if deployment.facts.streams > 1:
        kernels = residual_mixing(deployment, prefill, "kernels/ops/layernorm/mhc.py")
        problems += [kernel.problem("hc_pre", layers) for kernel in kernels]
    if deployment.server.enable_deterministic_inference:
        problems += _invariant_products(deployment, layers, prefill, decode_batch, is_last=is_last)
    return problems


def _invariant_products(
    deployment: SglangDeployment, layers: Sequence[int], prefill: MList, decode_batch: int, *, is_last: bool
) -> list[Problem]:
    """The router and the head, which are bf16 whatever the checkpoint."""
    facts = deployment.facts

    def product(n: int, m: MList) -> StandaloneKernel:
        return StandaloneKernel(kernel=Kernel.BF16_DENSE, n=n, k=facts.hidden, m=m, rule=BATCH_INVARIANT)

    problems: list[Problem] = []
    routed = [layer for layer in layers if facts.is_moe(layer)]
    if facts.experts is not None and routed:
        problems.append(product(facts.experts.num, prefill).problem("mlp.gate", routed))
    if is_last:
        columns = round_up(facts.vocab, VOCAB_PADDING) // deployment.parallel.tp
        problems.append(product(columns, MList.up_to(decode_batch)).problem("lm_head", layers[-1:]))
    return problems


def _index_kernels(
    deployment: SglangDeployment, indexer: Indexer, prefill: MList, decode_batch: int, *, is_last: bool
) -> list[StandaloneKernel]:
    role = deployment.server.disaggregation_mode
    kernels: list[StandaloneKernel] = []
    if role is not PdRole.decode:
        kernels.append(_prefill_scores(deployment, indexer, prefill, is_last=is_last))
    if role is not PdRole.prefill:
        kernels += _decode_scores(deployment, indexer, decode_batch)
    return kernels


def _prefill_scores(
    deployment: SglangDeployment, indexer: Indexer, prefill: MList, *, is_last: bool
) -> StandaloneKernel:
    """Every place of the pipeline but the last keeps one SM free while it scores keys."""
    keeps_one_free = not is_last and deployment.parallel.pp > 1
    return StandaloneKernel(
        kernel=Kernel.MQA_LOGITS,
        n=max(indexer.heads, LEAST_INDEX_HEADS),
        k=indexer.head,
        m=prefill,
        options=(("num_sms", deployment.target.num_sms - 1),) if keeps_one_free else (),
        rule="srt/layers/attention/dsa/dsa_indexer.py: prefill",
    )


def _decode_scores(deployment: SglangDeployment, indexer: Indexer, decode_batch: int) -> list[StandaloneKernel]:
    per_request = deployment.server.tokens_per_request
    # On sm_90 the tokens of one request are requests of their own.
    next_n = per_request if deployment.is_sm100 else 1
    rows = decode_batch if deployment.is_sm100 else decode_batch * per_request
    scores = [
        StandaloneKernel(
            kernel=Kernel.PAGED_MQA_LOGITS,
            n=max(indexer.heads, LEAST_INDEX_HEADS),
            k=indexer.head,
            m=MList.up_to(min(rows, deployment.target.num_sms)),
            options=(("next_n", tokens),),
            rule="srt/layers/attention/dsa/dsa_indexer.py: decode",
        )
        for tokens in sorted({1, next_n})
    ]
    metadata = StandaloneKernel(
        kernel=Kernel.PAGED_MQA_METADATA,
        n=1,
        k=1,
        m=MList.up_to(rows),
        rule="srt/layers/attention/dsa_backend.py get_paged_mqa_logits_metadata",
    )
    return [*scores, metadata]


def _compressed(
    deployment: SglangDeployment, attention: CompressedAttention, prefill: MList, decode_batch: int
) -> list[StandaloneKernel]:
    kernels: list[StandaloneKernel] = []
    if wo_a_is_fp8(deployment):
        groups, n, k = attention.output_groups(deployment.parallel.attn_tp)
        rule = "srt/models/deepseek_v4.py _fp8_wo_a_einsum"
        kernels.append(StandaloneKernel(kernel=Kernel.EINSUM, n=n, k=k, groups=groups, m=prefill, rule=rule))
    if attention.is_indexed:
        kernels += _compressed_scores(deployment, attention, prefill, decode_batch)
    return kernels


def _compressed_scores(
    deployment: SglangDeployment, attention: CompressedAttention, prefill: MList, decode_batch: int
) -> list[StandaloneKernel]:
    source = "srt/layers/attention/dsv4/indexer.py"
    rows = min(decode_batch * deployment.server.tokens_per_request, deployment.target.num_sms)

    def scores(kernel: Kernel, m: MList, option: str, rule: str) -> StandaloneKernel:
        options: Options = ((option, 1),)
        return StandaloneKernel(
            kernel=kernel, n=attention.index_heads, k=attention.index_head, m=m, options=options, rule=rule
        )

    kernels = [scores(Kernel.PAGED_MQA_LOGITS, MList.up_to(rows), "next_n", f"{source}: decode")]
    if prefill.largest >= NONPAGED_QUERIES:
        queries = MList((range(NONPAGED_QUERIES, prefill.largest + 1),))
        kernels.append(scores(Kernel.MQA_LOGITS, queries, "compressed", f"{source}: long prefill"))
    return kernels


def wo_a_is_fp8(deployment: SglangDeployment) -> bool:
    """Whether DeepSeek-V4's wo_a is DeepGEMM's einsum: arg_groups/serving_hook.py leaves it bf16 on sm_90."""
    return deployment.is_sm100 if deployment.server.fp8_wo_a is None else deployment.server.fp8_wo_a


def absorbed_products(facts: ModelFacts, layers: Sequence[int], m: MList, tp: int) -> list[Problem]:
    """The two products of absorbed kv_b_proj as masked ones, a group for each head (SGLANG_USE_DEEPGEMM_BMM)."""
    problems: list[Problem] = []
    for attention, members in facts.attentions(layers).items():
        if isinstance(attention, LatentAttention):
            for name, n, k in (
                ("w_kc", attention.kv_lora_rank, attention.nope),
                ("w_vc", attention.v_head, attention.kv_lora_rank),
            ):
                kernel = StandaloneKernel(
                    kernel=Kernel.MASKED,
                    n=n,
                    k=k,
                    groups=attention.heads // tp,
                    m=m,
                    rule="srt/models/deepseek_v2.py: absorbed products on DeepGEMM",
                )
                problems.append(kernel.problem(f"self_attn.{name}", members))
    return problems


def fewer_sms(deployment: SglangDeployment, linear: Linear) -> list[tuple[int, int, str]]:
    """(SMs, largest M, rule) of each further way in which the linear runs on a part of the GPU."""
    ways: list[tuple[int, int, str]] = []
    server = deployment.server
    num_sms = deployment.target.num_sms
    is_indexer = linear.role is Role.INDEXER and class_of(deployment.facts).overlaps_indexer
    if is_indexer and not server.disable_cuda_graph:
        half = round_up(num_sms // 2, DUAL_STREAM_SM_STEP)
        ways.append((half, DUAL_STREAM_TOKENS, "dsa_indexer.py: wq_b beside another stream in a captured graph"))
    if server.enable_two_batch_overlap and deployment.parallel.moe_a2a_backend is A2A.deepep:
        rule = "batch_overlap/operations_strategy.py: two-batch overlap of prefill"
        ways.append((num_sms - DEEPEP_SMS, LARGEST_M_MAX, rule))
    if server.enable_single_batch_overlap and linear.role is Role.SHARED_EXPERTS:
        kept = COMBINE_SMS_SM100 if deployment.is_sm100 else COMBINE_SMS
        ways.append((num_sms - kept, LARGEST_M_MAX, "single_batch_overlap.py: shared experts"))
    return ways


def not_for_deepgemm(deployment: SglangDeployment) -> list[NotDeepGemm]:
    """What goes elsewhere by SGLang's own choice."""
    entries: list[NotDeepGemm] = []
    kinds = deployment.facts.attentions(range(deployment.facts.num_layers))
    if any(isinstance(kind, CompressedAttention) for kind in kinds):
        if not wo_a_is_fp8(deployment):
            reason = "bf16 on sm_90 unless server.fp8_wo_a=true (arg_groups/serving_hook.py)"
            entries.append(NotDeepGemm("self_attn.wo_a", reason))
        entries.append(NotDeepGemm("indexer metadata", "SGLang's own kernel (SGLANG_OPT_USE_JIT_INDEXER_METADATA)"))
    draft = deployment.facts.draft
    if draft is not None and deployment.server.mtp and not draft.projections:
        entries.append(NotDeepGemm("draft.eh_proj", "bf16 nn.Linear of the draft model"))
    return entries
