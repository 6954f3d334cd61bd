"""SGLang 0.5.23: DeepGEMM kernels that no sweep visits: indexer logits, einsum, residual mixing, fewer SMs.

Paths in the rules are inside the package sglang of that version.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.workload.blocks.compressed import CompressedAttention
from pipeline.workload.blocks.latent import Indexer, LatentAttention
from pipeline.workload.linears import Linear, Role
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import A2A
from pipeline.workload.problems import Kernel, MList, NotDeepGemm, Options, Problem
from pipeline.workload.servers import PdRole
from pipeline.workload.servers.rules import Deployment
from pipeline.workload.servers.sglang_dense import BATCH_INVARIANT
from pipeline.workload.servers.sglang_m import LARGEST_M_MAX

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
# kernels/ops/layernorm/mhc.py _compute_num_split_for_mhc_pre.
MHC_BLOCK = 64
MHC_LEAST_BLOCKS_PER_SPLIT = 4
# models/deepseek_v4.py: prefill of this many queries and more scores its keys without pages.
NONPAGED_QUERIES = 8192

# layers/vocab_parallel_embedding.py.
VOCAB_PADDING = 64

Found = tuple[Kernel, int, int, int, MList, Options, str]


def problems(
    at: Deployment, layers: Sequence[int], prefill: MList, decode_batch: int, *, is_last: bool
) -> list[Problem]:
    """What these layers launch besides their linears; ranks are left to the caller.

    `prefill`: numbers of tokens of one step; `decode_batch`: most requests of one.
    """
    found: list[Problem] = []
    for attention, members in at.facts.attentions(layers).items():
        if isinstance(attention, LatentAttention) and attention.indexer is not None:
            kernels = _index_kernels(at, attention.indexer, prefill, decode_batch, is_last=is_last)
            found += [_problem(kernel, "self_attn.indexer", members) for kernel in kernels]
        if isinstance(attention, CompressedAttention):
            kernels = _compressed(at, attention, prefill, decode_batch)
            found += [_problem(kernel, "self_attn", members) for kernel in kernels]
    if at.facts.streams > 1:
        found += [_problem(kernel, "hc_pre", layers) for kernel in mixing(at, prefill, "kernels/ops/layernorm/mhc.py")]
    if at.server.enable_deterministic_inference:
        found += _invariant_products(at, layers, prefill, decode_batch, is_last=is_last)
    return found


def _invariant_products(
    at: Deployment, layers: Sequence[int], prefill: MList, decode_batch: int, *, is_last: bool
) -> list[Problem]:
    """The router and the head, which are bf16 whatever the checkpoint."""
    hidden = at.facts.hidden
    experts = at.facts.experts
    found = list[Problem]()
    routed = [layer for layer in layers if at.facts.is_moe(layer)]
    if experts is not None and routed:
        router: Found = (Kernel.BF16_DENSE, experts.num, hidden, 1, prefill, (), BATCH_INVARIANT)
        found.append(_problem(router, "mlp.gate", routed))
    if is_last:
        columns = -(-at.facts.vocab // VOCAB_PADDING) * VOCAB_PADDING // at.parallel.tp
        head: Found = (Kernel.BF16_DENSE, columns, hidden, 1, MList.up_to(decode_batch), (), BATCH_INVARIANT)
        found.append(_problem(head, "lm_head", layers[-1:]))
    return found


def _index_kernels(
    at: Deployment, indexer: Indexer, prefill: MList, decode_batch: int, *, is_last: bool
) -> list[Found]:
    heads = max(indexer.heads, LEAST_INDEX_HEADS)
    head = indexer.head
    per_request = at.server.tokens_per_request
    # On sm_90 the tokens of one request are requests of their own.
    next_n, rows = (per_request, decode_batch) if at.is_sm100 else (1, decode_batch * per_request)
    logits = "srt/layers/attention/dsa/dsa_indexer.py"
    num_sms = at.target.num_sms
    found: list[Found] = []
    if at.server.disaggregation_mode is not PdRole.decode:
        # Every pipeline stage but the last keeps one SM free while it scores keys.
        sms: Options = () if is_last or at.parallel.pp == 1 else (("num_sms", num_sms - 1),)
        found.append((Kernel.MQA_LOGITS, heads, head, 1, prefill, sms, f"{logits}: prefill"))
    if at.server.disaggregation_mode is not PdRole.prefill:
        step = MList.up_to(min(rows, num_sms))
        for tokens in sorted({1, next_n}):
            options: Options = (("next_n", tokens),)
            found.append((Kernel.PAGED_MQA_LOGITS, heads, head, 1, step, options, f"{logits}: decode"))
        metadata = "srt/layers/attention/dsa_backend.py get_paged_mqa_logits_metadata"
        found.append((Kernel.PAGED_MQA_METADATA, 1, 1, 1, MList.up_to(rows), (), metadata))
    return found


def _compressed(at: Deployment, attention: CompressedAttention, prefill: MList, decode_batch: int) -> list[Found]:
    found: list[Found] = []
    if wo_a_is_fp8(at):
        groups, n, k = attention.output_groups(at.parallel.attn_tp)
        found.append((Kernel.EINSUM, n, k, groups, prefill, (), "srt/models/deepseek_v4.py _fp8_wo_a_einsum"))
    if attention.is_indexed:
        heads = attention.index_heads
        head = attention.index_head
        source = "srt/layers/attention/dsv4/indexer.py"
        rows = MList.up_to(min(decode_batch * at.server.tokens_per_request, at.target.num_sms))
        found.append((Kernel.PAGED_MQA_LOGITS, heads, head, 1, rows, (("next_n", 1),), f"{source}: decode"))
        if prefill.largest >= NONPAGED_QUERIES:
            queries = MList((range(NONPAGED_QUERIES, prefill.largest + 1),))
            found.append((Kernel.MQA_LOGITS, heads, head, 1, queries, (("compressed", 1),), f"{source}: long prefill"))
    return found


def mixing(at: Deployment, tokens: MList, rule: str) -> list[Found]:
    """tf32_hc_prenorm_gemm is specialised by the number of splits, which falls as the tokens grow."""
    streams = at.facts.streams
    n = streams * (2 + streams)
    k = streams * at.facts.hidden
    ranges: dict[int, list[int]] = {}
    for m in tokens:
        ranges.setdefault(mixing_splits(m, k, at.target.num_sms), []).append(m)
    return [
        (Kernel.HC_PRENORM, n, k, 1, MList.of(rows), (("num_splits", splits),), rule) for splits, rows in ranges.items()
    ]


def mixing_splits(tokens: int, k: int, num_sms: int) -> int:
    """How many parts of K the mixing product is split into (_compute_num_split_for_mhc_pre)."""
    blocks = -(-k // MHC_BLOCK)
    return max(1, min(num_sms // max(1, -(-tokens // MHC_BLOCK)), blocks // MHC_LEAST_BLOCKS_PER_SPLIT))


def wo_a_is_fp8(at: Deployment) -> bool:
    """Whether DeepSeek-V4's wo_a is DeepGEMM's einsum: arg_groups/serving_hook.py leaves it bf16 on sm_90."""
    return at.is_sm100 if at.server.fp8_wo_a is None else at.server.fp8_wo_a


def absorbed_products(facts: ModelFacts, layers: Sequence[int], m: MList, tp: int) -> list[Problem]:
    """The two products of absorbed kv_b_proj as masked ones, a group for each head (SGLANG_USE_DEEPGEMM_BMM)."""
    found: list[Problem] = []
    for attention, members in facts.attentions(layers).items():
        if isinstance(attention, LatentAttention):
            heads = attention.heads // tp
            rule = "srt/models/deepseek_v2.py: absorbed products on DeepGEMM"
            for name, n, k in (
                ("w_kc", attention.kv_lora_rank, attention.nope),
                ("w_vc", attention.v_head, attention.kv_lora_rank),
            ):
                found.append(_problem((Kernel.MASKED, n, k, heads, m, (), rule), f"self_attn.{name}", members))
    return found


def fewer_sms(at: Deployment, linear: Linear) -> list[tuple[int, int, str]]:
    """(SMs, largest M, rule) of each further way in which the linear runs on a part of the GPU."""
    found: list[tuple[int, int, str]] = []
    server = at.server
    num_sms = at.target.num_sms
    if linear.role is Role.INDEXER and at.facts.family == "deepseek" and not server.disable_cuda_graph:
        half = -(-(num_sms // 2) // DUAL_STREAM_SM_STEP) * DUAL_STREAM_SM_STEP
        found.append((half, DUAL_STREAM_TOKENS, "dsa_indexer.py: wq_b beside another stream in a captured graph"))
    if server.enable_two_batch_overlap and at.parallel.moe_a2a_backend is A2A.deepep:
        rule = "batch_overlap/operations_strategy.py: two-batch overlap of prefill"
        found.append((num_sms - DEEPEP_SMS, LARGEST_M_MAX, rule))
    if server.enable_single_batch_overlap and linear.role is Role.SHARED_EXPERTS:
        kept = COMBINE_SMS_SM100 if at.is_sm100 else COMBINE_SMS
        found.append((num_sms - kept, LARGEST_M_MAX, "single_batch_overlap.py: shared experts"))
    return found


def never(at: Deployment) -> list[NotDeepGemm]:
    """What goes elsewhere by SGLang's own choice."""
    found: list[NotDeepGemm] = []
    if at.facts.family == "deepseek_v4":
        if not wo_a_is_fp8(at):
            reason = "bf16 on sm_90 unless server.fp8_wo_a=true (arg_groups/serving_hook.py)"
            found.append(NotDeepGemm("self_attn.wo_a", reason))
        found.append(NotDeepGemm("indexer metadata", "SGLang's own kernel (SGLANG_OPT_USE_JIT_INDEXER_METADATA)"))
    if at.facts.draft is not None and at.server.mtp and not at.facts.draft.projections:
        found.append(NotDeepGemm("draft.eh_proj", "bf16 nn.Linear of the draft model"))
    return found


def _problem(found: Found, name: str, layers: Sequence[int]) -> Problem:
    kernel, n, k, groups, m, options, rule = found
    return Problem(kernel, n, k, groups, m, (name,), tuple(sorted(layers)), (), (rule,), options, warmup_calls=0)
