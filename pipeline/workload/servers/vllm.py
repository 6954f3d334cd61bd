"""vLLM, read from the released wheels 0.11.0 to 0.33.0: which linear reaches DeepGEMM, and at which M.

Paths in the rules are inside the package vllm of 0.33. A layout here is one over all ranks of a replica group: vLLM's
--tensor-parallel-size is parallel.attn_tp, its --data-parallel-size is parallel.attn_dp, and --enable-expert-parallel
is an all-to-all backend or parallel.ep = parallel.tp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.workload.linears import Linear, Role, block_problems
from pipeline.workload.parallel import A2A
from pipeline.workload.problems import Kernel, MList, NotDeepGemm, Options, Problem
from pipeline.workload.servers import held, sglang_others, vllm_experts, vllm_others, vllm_warmup
from pipeline.workload.servers.rules import Deployment, Use, Widths
from pipeline.workload.servers.vllm_versions import Version, changes_up_to, version_of

GIB = 1 << 30
# engine/arg_utils.py: (memory below this, max_num_batched_tokens, max_num_seqs) of the API server.
SMALL_MEMORY = 70 * GIB
LARGE_MEMORY = 160 * GIB
# scaled_mm/flashinfer.py: fewer rows than this go to FlashInfer's own kernel on sm_90.
FIRST_M_ON_SM90 = 32
BLOCK = (128, 128)
# utils/deep_gemm.py _DEEPGEMM_BLACKWELL_EXCLUDED_MODEL_TYPES.
EXCLUDED_ON_BLACKWELL = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe")
GLM_NEVER_REPLICATES = ("glm4_moe",)
SCALE_BLOCK = 128


@dataclass(frozen=True, slots=True)
class VllmRules(Deployment):
    """See Rules."""

    @property
    def version(self) -> Version:
        """The release whose rules hold."""
        return version_of(self.server.version)

    @property
    def used(self) -> tuple[str, ...]:
        """See Rules."""
        return tuple(f"vllm from {'.'.join(map(str, since))}: {what}" for since, what in changes_up_to(self.version))

    @property
    def chunk(self) -> int:
        """See Rules: max_num_batched_tokens."""
        if self.server.max_num_batched_tokens is not None:
            return self.server.max_num_batched_tokens
        if self.target.memory_bytes >= LARGE_MEMORY and self.version >= (0, 28, 0):
            return 16384
        return 8192 if self.target.memory_bytes >= SMALL_MEMORY else 2048

    @property
    def decode_batch(self) -> int:
        """See Rules: max_num_seqs."""
        if self.server.max_running_requests is not None:
            return self.server.max_running_requests
        if self.server.cuda_graph_max_bs is not None:
            return self.server.cuda_graph_max_bs
        return 1024 if self.target.memory_bytes >= SMALL_MEMORY else 256

    @property
    def batch_multiple(self) -> int:
        """See Rules: sequence-parallel experts pad to the tensor-parallel size."""
        return self.parallel.attn_tp if self._is_sequence_parallel else 1

    @property
    def counts_unpadded_tokens(self) -> bool:
        """See Rules: that field is SGLang's."""
        return False

    @property
    def routes_per_token(self) -> int:
        """See Rules; shared experts are never fused on CUDA."""
        return 0 if self.facts.experts is None else self.facts.experts.top_k

    @property
    def nothing_to_autotune(self) -> str | None:
        """See Rules: it tunes whatever FlashInfer operation its dummy run meets (warmup/kernel_warmup.py)."""
        return None

    @property
    def absorbs_kv_up(self) -> bool:
        """See Rules."""
        return False

    def masked_rows(self, tokens: int) -> int | None:
        """See Rules."""
        return tokens * self.parallel.attn_dp if vllm_experts.is_batched(self) else None

    def problems(self) -> list[str]:
        """See Rules."""
        facts = self.facts
        parallel = self.parallel
        experts = self.facts.experts
        tp = parallel.attn_tp
        found = [line for kind in facts.attentions(range(facts.num_layers)) for line in kind.layout_problems(tp)]
        if parallel.attn_cp > 1:
            found.append("parallel.attn_cp must be 1 for vLLM, whose context parallelism changes no shape")
        if parallel.moe_dense_tp_size is not None:
            found.append("parallel.moe_dense_tp_size is SGLang's; leave it null for vLLM")
        if parallel.effective_ep not in (1, parallel.tp):
            found.append(
                f"parallel.ep must be 1 or parallel.tp {parallel.tp} for vLLM (--enable-expert-parallel spreads "
                f"experts over all ranks), got {parallel.effective_ep}"
            )
        if facts.dense is not None and facts.dense.intermediate % tp != 0:
            found.append(
                f"intermediate_size {facts.dense.intermediate} must be divisible by the tp {tp}; change parallel.tp"
            )
        if experts is not None and parallel.effective_ep > 1 and experts.num % parallel.tp != 0:
            found.append(f"the {experts.num} experts must be divisible by all {parallel.tp} ranks; change parallel.tp")
        return list(dict.fromkeys(found))

    def split(self, num_layers: int) -> list[int]:
        """See Rules: the last stage gets no extra layer, the ones before it do (distributed/utils.py)."""
        base, extra = divmod(num_layers, self.parallel.pp)
        counts = [base] * self.parallel.pp
        for back in range(2, extra + 2):
            counts[-back] += 1
        return counts

    def widths(self) -> Widths:
        """Over how many ranks each part of a layer is spread."""
        facts = self.facts
        tp = self.parallel.attn_tp
        experts = self.facts.experts
        spreads = self.parallel.effective_ep > 1
        indexed = any(getattr(kind, "indexer", None) for kind in facts.attentions(range(facts.num_layers)))
        whole_dense = self._is_sequence_parallel and indexed and self.version >= (0, 29, 0) and self.parallel.pp == 1
        return Widths(
            attention=tp,
            dense=1 if whole_dense else tp,
            shared=1 if self._shared_is_whole else tp,
            experts=1 if spreads else self.parallel.tp,
            groups=0 if experts is None else experts.num // (self.parallel.tp if spreads else 1),
            num_fused=0,
            # Whole scale blocks on every rank (models/deepseek_v4/nvidia/model.py).
            shared_multiple=SCALE_BLOCK if facts.family == "deepseek_v4" and self.version >= (0, 24, 0) else 1,
        )

    def linears(self, layers: Sequence[int], *, draft: bool = False) -> list[Linear]:
        """See Rules."""
        widths = self.widths()
        return held.draft_linears(self.facts, widths) if draft else held.layer_linears(self.facts, widths, layers)

    def cut_blocks(self, linear: Linear) -> list[str]:
        """See Rules: it refuses what SGLang refuses (quantization/utils/fp8_utils.py validate_fp8_block_shape)."""
        quantization = self.facts.quantization
        if quantization.block is None or quantization.ignores(linear.name, linear.layers[:1]):
            return []
        return block_problems(linear, quantization.block, last_part_exempt=True)

    def reason(self, linear: Linear) -> str | None:
        """See Rules."""
        facts = self.facts
        quantization = self.facts.quantization
        if linear.name in self.server.served_elsewhere:
            return "named in server.served_elsewhere"
        if self.server.use_deep_gemm is False:
            return "server.use_deep_gemm=false (VLLM_USE_DEEP_GEMM=0)"
        if linear.role is Role.EXPERTS:
            return vllm_experts.reason(self, self.version)
        if linear.role is Role.INDEXER_KEY and self.version >= (0, 20, 0):
            return "fused with the bf16 weights_proj from 0.20 on (models/deepseek_v32/attention.py)"
        if quantization.ignores(linear.name, linear.layers[:1]):
            return "the checkpoint keeps it unquantised (modules_to_not_convert, ignored_layers)"
        if quantization.block != BLOCK:
            source = "kernels/linear/scaled_mm/deep_gemm.py"
            return f"weights are {quantization.scheme}, not FP8 with 128x128 scale blocks ({source})"
        if self._is_excluded:
            return f"DeepGEMM is off for {facts.model_type} on this architecture (utils/deep_gemm.py)"
        n_multiple = 128 if self.version < (0, 12, 0) else 64
        for what, size, multiple in (("N", linear.n, n_multiple), ("K", linear.k, SCALE_BLOCK)):
            if size % multiple != 0:
                return f"{what} {size} is not a multiple of {multiple} (should_use_deepgemm_for_fp8_linear)"
        return None

    def uses(self, linear: Linear) -> list[Use]:
        """See Rules."""
        if linear.role is Role.EXPERTS:
            return vllm_experts.uses(self, self.version, linear, self.chunk)
        largest = self.chunk * linear.rows_per_token
        is_split = self.is_sm90 and self.version >= (0, 25, 0)
        m = MList((range(FIRST_M_ON_SM90 if is_split else 1, largest + 1),))
        calls = vllm_warmup.dense_calls(self, self.version, linear, self.chunk)
        rule = "kernels/linear/scaled_mm/deep_gemm.py DeepGemmFp8BlockScaledMMKernel"
        # The vendored library (from 0.20) compiles N and K in by default; before, a separate install left all open.
        options: Options = (("compiled_dims", "nk"),) if self.version >= (0, 20, 0) else ()
        return [Use(Kernel.DENSE, rule, m, options, calls)]

    def others(self, layers: Sequence[int], ranks: Sequence[int], *, is_last: bool) -> list[Problem]:
        """See Rules."""
        found: list[tuple[str, Sequence[int], vllm_others.Found]] = []
        for attention, members in self.facts.attentions(layers).items():
            kernels = vllm_others.attention_kernels(self, attention, MList.up_to(self.chunk), self.decode_batch)
            found += [("self_attn", members, kernel) for kernel in kernels]
        if self.facts.streams > 1:
            kernels = sglang_others.mixing(self, MList.up_to(self.chunk), "models/deepseek_v4/nvidia")
            found += [("hc_pre", layers, kernel) for kernel in kernels]
        return [
            Problem(kernel, n, k, groups, m, (name,), tuple(sorted(where)), tuple(ranks), (rule,), options, 0)
            for name, where, (kernel, n, k, groups, m, options, rule) in found
        ]

    def never(self) -> list[NotDeepGemm]:
        """See Rules."""
        found = self.facts.never()
        if self.is_sm90 and self.version >= (0, 25, 0) and self.facts.quantization.block == BLOCK:
            reason = "FlashInfer's own kernel with its own cache (kernels/linear/scaled_mm/flashinfer.py)"
            found.append(NotDeepGemm(f"dense linears below {FIRST_M_ON_SM90} rows", reason))
        return found

    @property
    def _is_sequence_parallel(self) -> bool:
        parallel = self.parallel
        spreads = parallel.effective_ep > 1 and parallel.attn_tp > 1 and parallel.attn_dp > 1
        return spreads and parallel.moe_a2a_backend is not A2A.pplx

    @property
    def _shared_is_whole(self) -> bool:
        if self.facts.family in GLM_NEVER_REPLICATES:
            return False
        if self.facts.family == "deepseek_v4":
            return self._is_sequence_parallel and self.version >= (0, 27, 0) and self.parallel.pp == 1
        return self._is_sequence_parallel

    @property
    def _is_excluded(self) -> bool:
        if self.facts.model_type not in EXCLUDED_ON_BLACKWELL or self.version < (0, 25, 0):
            return False
        major = self.target.major_minor[0]
        return major == 10 or (major == 12 and self.version >= (0, 33, 0))
