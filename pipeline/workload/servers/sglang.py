"""SGLang 0.5.23: which kernel each linear reaches, with how many rows, and why the others do not.

Paths in the rules are inside the package sglang/srt of that version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pipeline.workload.blocks import must_divide
from pipeline.workload.linears import Linear, Role, block_problems
from pipeline.workload.parallel import A2A, split_layers_last
from pipeline.workload.problems import Kernel, MList, NotDeepGemm, Options, Problem
from pipeline.workload.servers import (
    DeepEpMode,
    held,
    release,
    sglang_batches,
    sglang_dense,
    sglang_experts,
    sglang_m,
    sglang_others,
)  # fmt: skip
from pipeline.workload.servers.rules import Deployment, Use, Widths

# Classes that read moe_dense_tp_size; the others keep their dense layers over tp.
DENSE_TP_FAMILIES = ("deepseek", "glm4_moe", "mimo_v2")
# Classes whose attention is spread over the whole tp.
ATTENTION_OVER_TP = ("llama",)
# models/qwen3_next.py asserts that a rank is first and last.
WITHOUT_PIPELINE = ("qwen3_next",)
# models/glm4_moe.py sizes its experts without the redundant ones.
WITHOUT_REDUNDANT = ("glm4_moe",)
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
class SglangRules(Deployment):
    """See Rules."""

    @property
    def used(self) -> tuple[str, ...]:
        """See Rules."""
        return (READ_FROM, f"absorbed kv_b_proj on DeepGEMM: {'yes' if self._has_bmm else 'no'}")

    @property
    def chunk(self) -> int:
        """See Rules."""
        return sglang_batches.default_chunk(self.server, self.parallel, self.target)

    @property
    def decode_batch(self) -> int:
        """See Rules."""
        return sglang_batches.default_decode_batch(self.server, self.parallel, self.target)

    @property
    def batch_multiple(self) -> int:
        """See Rules."""
        return sglang_batches.batch_multiple(self.parallel)

    @property
    def counts_unpadded_tokens(self) -> bool:
        """See Rules."""
        return sglang_batches.counts_unpadded_tokens(self.parallel)

    @property
    def routes_per_token(self) -> int:
        """See Rules; fused shared experts are visited by all."""
        experts = self.facts.experts
        return 0 if experts is None else experts.top_k + self.widths().num_fused

    @property
    def nothing_to_autotune(self) -> str | None:
        """See Rules."""
        return sglang_batches.nothing_to_autotune(self.server)

    @property
    def absorbs_kv_up(self) -> bool:
        """See Rules."""
        return sglang_dense.kv_up_reason(self) is not None

    def masked_rows(self, tokens: int) -> int | None:
        """See Rules; a dummy batch may be larger than the dispatcher's limit, an expert sees each token once."""
        if not self.parallel.moe_a2a_backend.is_used:
            return None
        return max(tokens, sglang_batches.masked_rows(tokens, self.parallel))

    def problems(self) -> list[str]:
        """See Rules."""
        parallel = self.parallel
        experts = self.facts.experts
        tp = self._attention_tp
        found = [
            line for kind in self.facts.attentions(range(self.facts.num_layers)) for line in kind.layout_problems(tp)
        ]
        found += sglang_batches.size_problems(self.facts, parallel)
        if experts is not None and experts.num_shared:
            width = sglang_experts.shared_tp(self.facts, parallel)
            size = experts.shared_intermediate
            found += must_divide("shared experts' size", size, "parallel.tp", width, "parallel.tp")
        if self.facts.family in WITHOUT_PIPELINE and parallel.pp > 1:
            found.append(f"parallel.pp must be 1: SGLang's {self.facts.architecture} has no pipeline stages")
        if parallel.moe_a2a_backend is A2A.pplx:
            if parallel.attn_dp < 2:
                found.append("parallel.moe_a2a_backend=pplx needs parallel.attn_dp of at least 2 (moe_hook.py)")
            if self.server.deepep_mode is DeepEpMode.normal:
                found.append("parallel.moe_a2a_backend=pplx has no normal mode; set server.deepep_mode=auto")
        found += sglang_experts.runner_problems(self)
        return list(dict.fromkeys(found))

    def split(self, num_layers: int) -> list[int]:
        """See Rules."""
        return split_layers_last(num_layers, self.parallel.pp)

    def widths(self, *, draft: bool = False) -> Widths:
        """Over how many ranks each part of a layer is spread."""
        facts = self.facts
        parallel = self.parallel
        server = self.server
        experts = facts.experts
        is_whole = parallel.moe_dense_tp_size == 1 and facts.family in DENSE_TP_FAMILIES
        not_fused = sglang_experts.not_fused(self, draft=draft)
        num_fused = experts.num_shared if experts is not None and not_fused is None else 0
        skips_redundant = facts.family in WITHOUT_REDUNDANT or (draft and facts.family == "deepseek_v4")
        redundant = 0 if skips_redundant else server.ep_num_redundant_experts
        return Widths(
            attention=self._attention_tp,
            dense=1 if is_whole else parallel.tp,
            shared=sglang_experts.shared_tp(facts, parallel),
            experts=parallel.moe_tp,
            groups=0 if experts is None else (experts.num + redundant) // parallel.effective_ep + num_fused,
            num_fused=num_fused,
        )

    def linears(self, layers: Sequence[int], *, draft: bool = False) -> list[Linear]:
        """See Rules."""
        widths = self.widths(draft=draft)
        return held.draft_linears(self.facts, widths) if draft else held.layer_linears(self.facts, widths, layers)

    def cut_blocks(self, linear: Linear) -> list[str]:
        """See Rules."""
        quantization = self.facts.quantization
        if quantization.block is None or sglang_dense.ignored(self.facts, linear) is not None:
            return []
        return block_problems(linear, quantization.block, last_part_exempt=quantization.is_compressed_tensors)

    def reason(self, linear: Linear) -> str | None:
        """See Rules."""
        if linear.name in self.server.served_elsewhere:
            return "named in server.served_elsewhere"
        if linear.role is Role.EXPERTS:
            by_flags = sglang_experts.experts_reason(self)
            return by_flags or sglang_dense.cut_reason(linear, (64, 128))
        if linear.role is Role.KV_UP and (by_flags := sglang_dense.kv_up_reason(self)) is not None:
            return by_flags
        if linear.role is Role.INDEXER_KEY and sglang_dense.fuses_index_key(self.facts):
            return "fused with the bf16 weights_proj (layers/attention/dsa/dsa_indexer.py)"
        if sglang_dense.is_batch_invariant(self, linear):
            return None
        if self.server.fp8_gemm_backend not in sglang_dense.ON_DEEPGEMM:
            return f"server.fp8_gemm_backend={self.server.fp8_gemm_backend.name}"
        return sglang_dense.ignored(self.facts, linear) or sglang_dense.block_reason(self, linear)

    def uses(self, linear: Linear) -> list[Use]:
        """See Rules."""
        every_m = sglang_m.m_list(self.server, self.chunk)
        if linear.role is Role.EXPERTS:
            # Experts see the tokens of every attention DP group, not only this rank's chunk.
            tokens = self.chunk * self.parallel.attn_dp
            aligned = sglang_m.contiguous_m_list(
                every_m, chunk=tokens, top_k=self.routes_per_token, groups=linear.groups
            )
            kernels = sglang_experts.kernels(self)
            found = [Use(kernel, rule, aligned if kernel.is_contiguous else every_m) for kernel, rule in kernels]
        elif sglang_dense.is_batch_invariant(self, linear):
            return [Use(Kernel.BF16_DENSE, sglang_dense.BATCH_INVARIANT, every_m, (), 0)]
        else:
            block = self.facts.quantization.block
            kernel = sglang_dense.KERNELS.get(block, Kernel.DENSE) if block else Kernel.DENSE
            options: Options = (("block", 32),) if kernel is Kernel.DENSE_BLOCK32 else ()
            found = [Use(kernel, RULES[linear.role], every_m, options)]
        fewer = sglang_others.fewer_sms(self, linear)
        return found + [
            Use(use.kernel, rule, MList.of(m for m in use.m if m <= limit), (*use.options, ("num_sms", sms)))
            for use in found
            for sms, limit, rule in fewer
            if not use.kernel.name.endswith("MASKED")
        ]

    def others(self, layers: Sequence[int], ranks: Sequence[int], *, is_last: bool) -> list[Problem]:
        """See Rules."""
        prefill = MList.up_to(self.chunk if self.chunk > 0 else sglang_m.LARGEST_M_MAX)
        found = sglang_others.problems(self, layers, prefill, self.decode_batch, is_last=is_last)
        if self._has_bmm:
            every_m = sglang_m.m_list(self.server, self.chunk)
            found += sglang_others.absorbed_products(self.facts, layers, every_m, self._attention_tp)
        return [replace(problem, ranks=tuple(ranks)) for problem in found]

    def never(self) -> list[NotDeepGemm]:
        """See Rules."""
        entries = self.facts.never() + sglang_others.never(self)
        given = ("mlp.gate", "lm_head") if self.server.enable_deterministic_inference else ()
        return [entry for entry in entries if entry.layer not in given]

    @property
    def _attention_tp(self) -> int:
        return self.parallel.tp if self.facts.family in ATTENTION_OVER_TP else self.parallel.attn_tp

    @property
    def _has_bmm(self) -> bool:
        if self.is_sm100 or self.facts.quantization.block != sglang_dense.DEEPGEMM_BLOCK:
            return False
        version = release(self.server.version)
        by_version = version is not None and version < FIRST_WITHOUT_BMM
        return by_version if self.server.use_deepgemm_bmm is None else self.server.use_deepgemm_bmm
