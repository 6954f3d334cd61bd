"""SGLang 0.5.23: which kernel each linear reaches, with how many rows, and why the others do not.

Paths in the rules are inside the package sglang/srt of that version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipeline.servers.rules import Use, Widths
from pipeline.servers.sglang import batches, dense, m_lists, moe, other_kernels, refusals, shared_experts
from pipeline.servers.sglang.deployment import SglangDeployment
from pipeline.servers.sglang.model_classes import class_of
from pipeline.servers.sglang.schemes import HEAD, KV_UP, scheme_of
from pipeline.servers.shared import shards
from pipeline.servers.shared.flags import release
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.servers.shared.schemes import with_head, with_schemes
from pipeline.workload.linears import Linear, NotDeepGemm, Refusal, Role, block_errors
from pipeline.workload.parallel import split_layers_last

# Releases before this one ran absorbed kv_b_proj on DeepGEMM by default (the server's log of 0.4.5.post2 shows it).
FIRST_WITHOUT_BMM = (0, 5, 0)
READ_FROM = "sglang 0.5.23"

RULES = {
    Role.ATTENTION: "layers/quantization/fp8_utils.py dispatch_w8a8_block_fp8_linear",
    Role.KV_UP: "models/deepseek_common/attention_backend_handler.py: MHA_ONE_SHOT and MHA_CHUNKED_KV prefill",
    Role.INDEXER: "layers/attention/dsa/dsa_indexer.py, dsv4/indexer.py: wq_b is FP8",
    Role.INDEXER_KEY: "layers/attention/dsa/dsa_indexer.py: wk apart from weights_proj",
    Role.DENSE_MLP: "layers/quantization/fp8_utils.py dispatch_w8a8_block_fp8_linear; dense layers",
    Role.SHARED_EXPERTS: "models/deepseek_v2.py, glm4_moe.py, qwen2_moe.py: shared experts apart from the routed ones",
    Role.DRAFT: "models/deepseek_v4_nextn.py: projections of the draft model",
}


@dataclass(frozen=True, slots=True)
class SglangRules(SglangDeployment):
    """The rules of pipeline/servers/rules.py for SGLang."""

    @property
    def used(self) -> tuple[str, ...]:
        return (READ_FROM, f"absorbed kv_b_proj on DeepGEMM: {'yes' if self._has_bmm else 'no'}")

    @property
    def chunk(self) -> int:
        return batches.default_chunk(self.server, self.parallel, self.target)

    @property
    def decode_batch(self) -> int:
        return batches.default_decode_batch(self.server, self.parallel, self.target)

    @property
    def eager_batch(self) -> int:
        return self.server.max_running_requests or self.decode_batch

    @property
    def tokens_per_request(self) -> int:
        return self.server.tokens_per_request

    @property
    def has_cuda_graphs(self) -> bool:
        return not self.server.disable_cuda_graph

    @property
    def batch_multiple(self) -> int:
        return batches.batch_multiple(self.parallel)

    @property
    def counts_unpadded_tokens(self) -> bool:
        return batches.counts_unpadded_tokens(self.parallel)

    def masked_rows(self, tokens: int) -> int | None:
        """A dummy batch may be larger than the dispatcher's limit; an expert sees each token once."""
        if not self.parallel.moe_a2a_backend.is_used:
            return None
        return max(tokens, batches.masked_rows(tokens, self.parallel))

    def refusals(self) -> list[Refusal]:
        return refusals.refusals(self, self._attention_tp)

    def split(self, num_layers: int) -> list[int]:
        return split_layers_last(num_layers, self.parallel.pp)

    def widths(self, *, draft: bool = False) -> Widths:
        parallel = self.parallel
        model_class = class_of(self.facts)
        is_whole = parallel.moe_dense_tp_size == 1 and model_class.reads_moe_dense_tp_size
        return Widths(
            attention=self._attention_tp,
            dense=1 if is_whole else parallel.tp,
            shared=shared_experts.shared_tp(self.facts, parallel),
            experts=parallel.moe_tp,
            groups=self._groups(draft=draft),
            num_fused=self._num_fused(draft=draft),
        )

    @property
    def runs_draft(self) -> bool:
        return self.server.mtp

    def linears(self, layers: Sequence[int], *, draft: bool = False) -> list[Linear]:
        widths = self.widths(draft=draft)
        if draft:
            return with_schemes(shards.draft_linears(self.facts, widths), partial(scheme_of, self, draft=True))
        return with_schemes(shards.layer_linears(self.facts, widths, layers), partial(scheme_of, self))

    def cut_blocks(self, linear: Linear) -> list[str]:
        scheme = linear.scheme
        if scheme.block is None:
            return []
        return block_errors(linear, scheme.block, last_part_exempt=scheme.method == moe.COMPRESSED_TENSORS)

    def reason(self, linear: Linear) -> str | None:
        if linear.name in self.server.served_elsewhere:
            return "named in server.served_elsewhere"
        if linear.role is Role.EXPERTS:
            by_flags = moe.experts_reason(self, linear.scheme)
            return by_flags or dense.cut_reason(linear, (64, 128))
        if linear.role is Role.KV_UP and (by_flags := dense.kv_up_reason(self)) is not None:
            return by_flags
        if linear.role is Role.INDEXER_KEY and dense.fuses_index_key(self.facts):
            return "fused with the bf16 weights_proj (layers/attention/dsa/dsa_indexer.py)"
        if dense.is_batch_invariant(self, linear):
            return None
        if self.server.fp8_gemm_backend not in dense.ON_DEEPGEMM:
            return f"server.fp8_gemm_backend={self.server.fp8_gemm_backend.name}"
        return dense.unquantised_reason(self, linear) or dense.block_reason(self, linear)

    @property
    def routes_per_token(self) -> int:
        """Fused shared experts are visited by all."""
        experts = self.facts.experts
        return 0 if experts is None else experts.top_k + self.widths().num_fused

    @property
    def absorbs_kv_up(self) -> bool:
        return dense.kv_up_reason(self) is not None

    @property
    def nothing_to_autotune(self) -> str | None:
        return batches.nothing_to_autotune(self.server)

    def uses(self, linear: Linear) -> list[Use]:
        if dense.is_batch_invariant(self, linear) and linear.role is not Role.EXPERTS:
            every_m = m_lists.m_list(self.server, self.chunk)
            return [Use(kernel=Kernel.BF16_DENSE, rule=dense.BATCH_INVARIANT, m=every_m, warmup_calls=0)]
        whole_gpu = self._expert_uses(linear) if linear.role is Role.EXPERTS else [self._dense_use(linear)]
        return whole_gpu + [
            Use(
                kernel=use.kernel,
                rule=rule,
                m=MList.of(m for m in use.m if m <= limit),
                options=(*use.options, ("num_sms", sms)),
            )
            for use in whole_gpu
            for sms, limit, rule in other_kernels.fewer_sms(self, linear)
            if not use.kernel.is_masked
        ]

    def standalone_problems(self, layers: Sequence[int], ranks: Sequence[int], *, is_last: bool) -> list[Problem]:
        prefill = MList.up_to(self.chunk if self.chunk > 0 else m_lists.LARGEST_M_MAX)
        problems = other_kernels.standalone_problems(self, layers, prefill, self.decode_batch, is_last=is_last)
        if self._has_bmm:
            every_m = m_lists.m_list(self.server, self.chunk)
            in_blocks = [layer for layer in layers if scheme_of(self, KV_UP, layer).block == dense.DEEPGEMM_BLOCK]
            problems += other_kernels.absorbed_products(self.facts, in_blocks, every_m, self._attention_tp)
        return [replace(problem, ranks=tuple(ranks)) for problem in problems]

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        entries = self.facts.not_for_deepgemm() + other_kernels.not_for_deepgemm(self)
        on_deepgemm = ("mlp.gate", "lm_head") if self.server.enable_deterministic_inference else ()
        head = scheme_of(self, HEAD, self.facts.num_layers - 1)
        return with_head([entry for entry in entries if entry.layer not in on_deepgemm], head)

    def _dense_use(self, linear: Linear) -> Use:
        block = linear.scheme.block
        kernel = dense.KERNELS.get(block, Kernel.DENSE) if block else Kernel.DENSE
        return Use(
            kernel=kernel,
            rule=RULES[linear.role],
            m=m_lists.m_list(self.server, self.chunk),
            options=(("block", 32),) if kernel is Kernel.DENSE_BLOCK32 else (),
        )

    def _expert_uses(self, linear: Linear) -> list[Use]:
        every_m = m_lists.m_list(self.server, self.chunk)
        # Experts see the tokens of every attention DP group, not only this rank's chunk.
        tokens = self.chunk * self.parallel.attn_dp
        aligned = m_lists.contiguous_m_list(every_m, chunk=tokens, top_k=self.routes_per_token, groups=linear.groups)
        return [
            Use(kernel=kernel, rule=rule, m=aligned if kernel.is_contiguous else every_m)
            for kernel, rule in moe.kernels(self, linear.scheme)
        ]

    def _groups(self, *, draft: bool) -> int:
        experts = self.facts.experts
        if experts is None:
            return 0
        model_class = class_of(self.facts)
        counts_redundant = model_class.counts_redundant_experts
        if draft:
            counts_redundant = counts_redundant and model_class.draft_counts_redundant_experts
        redundant = self.server.ep_num_redundant_experts if counts_redundant else 0
        return (experts.num + redundant) // self.parallel.effective_ep + self._num_fused(draft=draft)

    def _num_fused(self, *, draft: bool) -> int:
        experts = self.facts.experts
        is_fused = experts is not None and shared_experts.not_fused(self, draft=draft) is None
        return experts.num_shared if experts is not None and is_fused else 0

    @property
    def _attention_tp(self) -> int:
        return self.parallel.tp if class_of(self.facts).spreads_attention_over_tp else self.parallel.attn_tp

    @property
    def _has_bmm(self) -> bool:
        if self.is_sm100:
            return False
        version = release(self.server.version)
        by_version = version is not None and version < FIRST_WITHOUT_BMM
        return by_version if self.server.use_deepgemm_bmm is None else self.server.use_deepgemm_bmm
