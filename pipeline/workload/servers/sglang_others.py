"""SGLang 0.5.23: DeepGEMM kernels that no sweep visits: indexer logits, einsum, residual mixing, fewer SMs.

Paths in the rules are inside the package sglang of that version.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.virtual_gpu.targets import Target
from pipeline.workload.blocks.compressed import CompressedAttention
from pipeline.workload.blocks.latent import LatentAttention
from pipeline.workload.linears import Linear, Role
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import A2A, Parallel
from pipeline.workload.problems import Kernel, MList, NotDeepGemm, Options, Problem
from pipeline.workload.servers import PdRole, Server
from pipeline.workload.servers.sglang_m import LARGEST_M_MAX

# dsa_indexer.py: fewer heads are padded to this many.
LEAST_INDEX_HEADS = 32
# dsa_indexer.py: in a captured graph of at most this many tokens, wq_b runs on half of the SMs, rounded up to 8.
DUAL_STREAM_TOKENS, DUAL_STREAM_SM_STEP = 1024, 8
# operations_strategy.py leaves DeepEP's own number of SMs to the dispatcher; DeepEP's default.
DEEPEP_SMS = 20
# single_batch_overlap.py: SMs that the combine keeps.
COMBINE_SMS, COMBINE_SMS_SM100 = 3, 32
# kernels/ops/layernorm/mhc.py _compute_num_split_for_mhc_pre.
MHC_BLOCK, MHC_LEAST_BLOCKS_PER_SPLIT = 64, 4
# models/deepseek_v4.py: prefill of this many queries and more scores its keys without pages.
NONPAGED_QUERIES = 8192

Found = tuple[Kernel, int, int, int, MList, Options, str]


def problems(
    facts: ModelFacts, server: Server, parallel: Parallel, target: Target,
    *, layers: Sequence[int], is_last: bool, chunk: int, decode_batch: int,
) -> list[Problem]:  # fmt: skip
    """What these layers launch besides their linears; ranks are left to the caller."""
    prefill = MList.up_to(chunk if chunk > 0 else LARGEST_M_MAX)
    found: list[Problem] = []
    for attention, members in facts.attentions(layers).items():
        if isinstance(attention, LatentAttention) and attention.indexer is not None:
            rows = decode_batch * (1 if target.major_minor >= (10, 0) else server.tokens_per_request)
            next_n = server.tokens_per_request if target.major_minor >= (10, 0) else 1
            # Every pipeline stage but the last keeps one SM free while it scores keys.
            sms: Options = () if is_last or parallel.pp == 1 else (("num_sms", target.num_sms - 1),)
            heads, head = max(attention.indexer.heads, LEAST_INDEX_HEADS), attention.indexer.head
            kernels = _index_kernels(heads, head, prefill, min(rows, target.num_sms), rows, sms, next_n, server)
            found += [_problem(kernel, "indexer", members) for kernel in kernels]
        if isinstance(attention, CompressedAttention):
            found += [
                _problem(one, "self_attn", members)
                for one in _compressed(attention, server, parallel, target, chunk, decode_batch)
            ]
    if facts.streams > 1:
        found += [_problem(one, "hc_pre", layers) for one in _mixing(facts, target, prefill)]
    return found


def _index_kernels(
    heads: int, head: int, prefill: MList, call_rows: int, rows: int, sms: Options, next_n: int, server: Server
) -> list[Found]:
    logits = "srt/layers/attention/dsa/dsa_indexer.py"
    found: list[Found] = []
    if server.disaggregation_mode is not PdRole.decode:
        found.append((Kernel.MQA_LOGITS, heads, head, 1, prefill, sms, f"{logits}: prefill"))
    if server.disaggregation_mode is not PdRole.prefill:
        step = MList.up_to(call_rows)
        for tokens in sorted({1, next_n}):
            options: Options = (("next_n", tokens),)
            found.append((Kernel.PAGED_MQA_LOGITS, heads, head, 1, step, options, f"{logits}: decode"))
        metadata = "srt/layers/attention/dsa_backend.py get_paged_mqa_logits_metadata"
        found.append((Kernel.PAGED_MQA_METADATA, 1, 1, 1, MList.up_to(rows), (), metadata))
    return found


def _compressed(
    attention: CompressedAttention, server: Server, parallel: Parallel, target: Target, chunk: int, decode_batch: int
) -> list[Found]:
    found: list[Found] = []
    tokens = MList.up_to(chunk if chunk > 0 else LARGEST_M_MAX)
    if wo_a_is_fp8(server, target):
        groups, n, k = attention.output_groups(parallel.attn_tp)
        rule = "srt/models/deepseek_v4.py _fp8_wo_a_einsum"
        found.append((Kernel.EINSUM, n, k, groups, tokens, (), rule))
    if attention.is_indexed:
        heads, head, source = attention.index_heads, attention.index_head, "srt/layers/attention/dsv4/indexer.py"
        rows = MList.up_to(min(decode_batch * server.tokens_per_request, target.num_sms))
        found.append((Kernel.PAGED_MQA_LOGITS, heads, head, 1, rows, (("next_n", 1),), f"{source}: decode"))
        if chunk >= NONPAGED_QUERIES or chunk < 1:
            queries = MList((range(NONPAGED_QUERIES, tokens.largest + 1),))
            found.append((Kernel.MQA_LOGITS, heads, head, 1, queries, (("compressed", 1),), f"{source}: long prefill"))
    return found


def _mixing(facts: ModelFacts, target: Target, tokens: MList) -> list[Found]:
    """tf32_hc_prenorm_gemm is specialised by the number of splits, which falls as the tokens grow."""
    n, k = facts.streams * (2 + facts.streams), facts.streams * facts.hidden
    ranges: dict[int, list[int]] = {}
    for m in tokens:
        ranges.setdefault(mixing_splits(m, k, target.num_sms), []).append(m)
    rule = "kernels/ops/layernorm/mhc.py mhc_pre"
    return [
        (Kernel.HC_PRENORM, n, k, 1, MList.of(rows), (("num_splits", splits),), rule) for splits, rows in ranges.items()
    ]


def mixing_splits(tokens: int, k: int, num_sms: int) -> int:
    """How many parts of K the mixing product is split into (_compute_num_split_for_mhc_pre)."""
    blocks = -(-k // MHC_BLOCK)
    return max(1, min(num_sms // max(1, -(-tokens // MHC_BLOCK)), blocks // MHC_LEAST_BLOCKS_PER_SPLIT))


def wo_a_is_fp8(server: Server, target: Target) -> bool:
    """Whether DeepSeek-V4's wo_a is DeepGEMM's einsum: arg_groups/serving_hook.py leaves it bf16 on sm_90."""
    return target.major_minor >= (10, 0) if server.fp8_wo_a is None else server.fp8_wo_a


def absorbed_products(facts: ModelFacts, layers: Sequence[int], m: MList, tp: int) -> list[Problem]:
    """The two products of absorbed kv_b_proj as masked ones, a group for each head (SGLANG_USE_DEEPGEMM_BMM)."""
    found: list[Problem] = []
    for attention, members in facts.attentions(layers).items():
        if isinstance(attention, LatentAttention):
            heads, rule = attention.heads // tp, "srt/models/deepseek_v2.py: absorbed products on DeepGEMM"
            for name, n, k in (
                ("w_kc", attention.kv_lora_rank, attention.nope),
                ("w_vc", attention.v_head, attention.kv_lora_rank),
            ):
                found.append(_problem((Kernel.MASKED, n, k, heads, m, (), rule), f"self_attn.{name}", members))
    return found


def fewer_sms(
    linear: Linear, facts: ModelFacts, server: Server, parallel: Parallel, target: Target
) -> list[tuple[int, int, str]]:
    """(SMs, largest M, rule) of each further way in which the linear runs on a part of the GPU."""
    found: list[tuple[int, int, str]] = []
    if linear.role is Role.INDEXER and facts.family == "deepseek" and not server.disable_cuda_graph:
        half = -(-(target.num_sms // 2) // DUAL_STREAM_SM_STEP) * DUAL_STREAM_SM_STEP
        found.append((half, DUAL_STREAM_TOKENS, "dsa_indexer.py: wq_b beside another stream in a captured graph"))
    if server.enable_two_batch_overlap and parallel.moe_a2a_backend is A2A.deepep:
        sms = target.num_sms - DEEPEP_SMS
        found.append((sms, LARGEST_M_MAX, "batch_overlap/operations_strategy.py: two-batch overlap of prefill"))
    if server.enable_single_batch_overlap and linear.role is Role.SHARED_EXPERTS:
        kept = COMBINE_SMS_SM100 if target.major_minor >= (10, 0) else COMBINE_SMS
        found.append((target.num_sms - kept, LARGEST_M_MAX, "single_batch_overlap.py: shared experts"))
    return found


def never(facts: ModelFacts, server: Server, target: Target) -> list[NotDeepGemm]:
    """What goes elsewhere by SGLang's own choice."""
    found: list[NotDeepGemm] = []
    if facts.family == "deepseek_v4":
        if not wo_a_is_fp8(server, target):
            reason = "bf16 on sm_90 unless server.fp8_wo_a=true (arg_groups/serving_hook.py)"
            found.append(NotDeepGemm("self_attn.wo_a", reason))
        found.append(NotDeepGemm("indexer metadata", "SGLang's own kernel (SGLANG_OPT_USE_JIT_INDEXER_METADATA)"))
    if facts.draft is not None and server.mtp and not facts.draft.projections:
        found.append(NotDeepGemm("draft.eh_proj", "bf16 nn.Linear of the draft model"))
    if server.enable_deterministic_inference:
        reason = "DeepGEMM's bf16_gemm_nn (batch_invariant_ops.py); not covered: compiled at its first use"
        found.append(NotDeepGemm("bf16 linears under deterministic inference", reason))
    return found


def _problem(found: Found, name: str, layers: Sequence[int]) -> Problem:
    kernel, n, k, groups, m, options, rule = found
    return Problem(kernel, n, k, groups, m, (name,), tuple(sorted(layers)), (), (rule,), options, warmup_calls=0)
