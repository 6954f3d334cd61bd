"""vLLM, read from the released wheels 0.11.0 to 0.33.0: which linear reaches DeepGEMM, and at which M.

Paths in the rules are inside the package vllm of 0.33. A layout here is one over all ranks of a replica group: vLLM's
--tensor-parallel-size is parallel.attn_tp, its --data-parallel-size is parallel.attn_dp, and --enable-expert-parallel
is an all-to-all backend or parallel.ep = parallel.tp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.servers.rules import Use, Widths
from pipeline.servers.shared import shards
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.servers.shared.standalone import residual_mixing
from pipeline.servers.vllm import moe, other_kernels, warmup
from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.servers.vllm.model_classes import class_of
from pipeline.servers.vllm.versions import Version, changes_up_to, version_of
from pipeline.workload.linears import Linear, NotDeepGemm, Refusal, Role, block_errors
from pipeline.workload.parallel import A2A

GIB = 1 << 30
# engine/arg_utils.py: (memory below this, max_num_batched_tokens, max_num_seqs) of the API server.
SMALL_MEMORY = 70 * GIB
LARGE_MEMORY = 160 * GIB
# scaled_mm/flashinfer.py: fewer rows than this go to FlashInfer's own kernel on sm_90.
FIRST_M_ON_SM90 = 32
BLOCK = (128, 128)
# utils/deep_gemm.py _DEEPGEMM_BLACKWELL_EXCLUDED_MODEL_TYPES.
EXCLUDED_ON_BLACKWELL = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe")
SCALE_BLOCK = 128


@dataclass(frozen=True, slots=True)
class VllmRules(VllmDeployment):
    """The rules of pipeline/servers/rules.py for vLLM."""

    @property
    def version(self) -> Version:
        """The release whose rules hold."""
        return version_of(self.server.version)

    @property
    def used(self) -> tuple[str, ...]:
        return tuple(f"vllm from {'.'.join(map(str, since))}: {what}" for since, what in changes_up_to(self.version))

    @property
    def chunk(self) -> int:
        """max_num_batched_tokens."""
        if self.server.max_num_batched_tokens is not None:
            return self.server.max_num_batched_tokens
        if self.target.memory_bytes >= LARGE_MEMORY and self.version >= (0, 28, 0):
            return 16384
        return 8192 if self.target.memory_bytes >= SMALL_MEMORY else 2048

    @property
    def decode_batch(self) -> int:
        """max_num_seqs."""
        if self.server.max_running_requests is not None:
            return self.server.max_running_requests
        if self.server.cuda_graph_max_bs is not None:
            return self.server.cuda_graph_max_bs
        return 1024 if self.target.memory_bytes >= SMALL_MEMORY else 256

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
        """Sequence-parallel experts pad to the tensor-parallel size."""
        return self.parallel.attn_tp if self._is_sequence_parallel else 1

    @property
    def counts_unpadded_tokens(self) -> bool:
        """That field is SGLang's."""
        return False

    @property
    def routes_per_token(self) -> int:
        """Shared experts are never fused on CUDA."""
        return 0 if self.facts.experts is None else self.facts.experts.top_k

    @property
    def nothing_to_autotune(self) -> str | None:
        """It tunes whatever FlashInfer operation its dummy run meets (warmup/kernel_warmup.py)."""
        return None

    @property
    def absorbs_kv_up(self) -> bool:
        return False

    def masked_rows(self, tokens: int) -> int | None:
        return tokens * self.parallel.attn_dp if moe.is_batched(self) else None

    def refusals(self) -> list[Refusal]:
        kinds = self.facts.attentions(range(self.facts.num_layers))
        by_attention = [refusal for kind in kinds for refusal in kind.refusals(self.parallel.attn_tp)]
        return list(dict.fromkeys(by_attention + self._layout_refusals() + self._size_refusals()))

    def _layout_refusals(self) -> list[Refusal]:
        parallel = self.parallel
        found: list[Refusal] = []
        if parallel.attn_cp > 1:
            found.append(Refusal("parallel.attn_cp must be 1 for vLLM, whose context parallelism changes no shape"))
        if parallel.moe_dense_tp_size is not None:
            found.append(Refusal("parallel.moe_dense_tp_size is SGLang's; leave it null for vLLM"))
        if parallel.effective_ep not in (1, parallel.tp):
            found.append(
                Refusal(
                    f"parallel.ep must be 1 or parallel.tp {parallel.tp} for vLLM (--enable-expert-parallel spreads "
                    f"experts over all ranks), got {parallel.effective_ep}"
                )
            )
        return found

    def _size_refusals(self) -> list[Refusal]:
        dense = self.facts.dense
        experts = self.facts.experts
        parallel = self.parallel
        tp = parallel.attn_tp
        found: list[Refusal] = []
        if dense is not None and dense.intermediate % tp != 0:
            message = f"intermediate_size {dense.intermediate} must be divisible by the tp {tp}; change parallel.tp"
            found.append(Refusal(message, (Role.DENSE_MLP,)))
        if experts is not None and parallel.effective_ep > 1 and experts.num % parallel.tp != 0:
            message = f"the {experts.num} experts must be divisible by all {parallel.tp} ranks; change parallel.tp"
            found.append(Refusal(message))
        return found

    def split(self, num_layers: int) -> list[int]:
        """The last pipeline stage gets no extra layer, the ones before it do (distributed/utils.py)."""
        base, extra = divmod(num_layers, self.parallel.pp)
        counts = [base] * self.parallel.pp
        for back in range(2, extra + 2):
            counts[-back] += 1
        return counts

    def widths(self) -> Widths:
        tp = self.parallel.attn_tp
        rounded_since = class_of(self.facts).rounds_shared_since
        rounds_shared = rounded_since is not None and self.version >= rounded_since
        return Widths(
            attention=tp,
            dense=1 if self._dense_is_whole else tp,
            shared=1 if self._shared_is_whole else tp,
            experts=1 if self._spreads_experts else self.parallel.tp,
            groups=self._groups,
            num_fused=0,
            shared_multiple=SCALE_BLOCK if rounds_shared else 1,
        )

    @property
    def runs_draft(self) -> bool:
        return self.server.mtp

    def linears(self, layers: Sequence[int], *, draft: bool = False) -> list[Linear]:
        widths = self.widths()
        return shards.draft_linears(self.facts, widths) if draft else shards.layer_linears(self.facts, widths, layers)

    def cut_blocks(self, linear: Linear) -> list[str]:
        """It refuses what SGLang refuses (quantization/utils/fp8_utils.py validate_fp8_block_shape)."""
        quantization = self.facts.quantization
        if quantization.block is None or quantization.ignores(linear.name, linear.layers[:1]):
            return []
        return block_errors(linear, quantization.block, last_part_exempt=True)

    def reason(self, linear: Linear) -> str | None:
        facts = self.facts
        quantization = self.facts.quantization
        if linear.name in self.server.served_elsewhere:
            return "named in server.served_elsewhere"
        if self.server.use_deep_gemm is False:
            return "server.use_deep_gemm=false (VLLM_USE_DEEP_GEMM=0)"
        if linear.role is Role.EXPERTS:
            return moe.reason(self, self.version)
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
        if linear.role is Role.EXPERTS:
            return moe.uses(self, self.version, linear, self.chunk)
        largest = self.chunk * linear.rows_per_token
        is_split = self.is_sm90 and self.version >= (0, 25, 0)
        return [
            Use(
                kernel=Kernel.DENSE,
                rule="kernels/linear/scaled_mm/deep_gemm.py DeepGemmFp8BlockScaledMMKernel",
                m=MList((range(FIRST_M_ON_SM90 if is_split else 1, largest + 1),)),
                # The vendored library (from 0.20) compiles N and K in; before, a separate install left all open.
                options=(("compiled_dims", "nk"),) if self.version >= (0, 20, 0) else (),
                warmup_calls=warmup.dense_calls(self, self.version, linear, self.chunk),
            )
        ]

    def standalone_problems(self, layers: Sequence[int], ranks: Sequence[int], *, is_last: bool) -> list[Problem]:
        prefill = MList.up_to(self.chunk)
        problems: list[Problem] = []
        for attention, members in self.facts.attentions(layers).items():
            kernels = other_kernels.attention_kernels(self, attention, prefill, self.decode_batch)
            problems += [kernel.problem("self_attn", members, ranks) for kernel in kernels]
        if self.facts.streams > 1:
            kernels = residual_mixing(self, prefill, "models/deepseek_v4/nvidia")
            problems += [kernel.problem("hc_pre", layers, ranks) for kernel in kernels]
        return problems

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        entries = self.facts.not_for_deepgemm()
        if self.is_sm90 and self.version >= (0, 25, 0) and self.facts.quantization.block == BLOCK:
            reason = "FlashInfer's own kernel with its own cache (kernels/linear/scaled_mm/flashinfer.py)"
            entries.append(NotDeepGemm(f"dense linears below {FIRST_M_ON_SM90} rows", reason))
        return entries

    @property
    def _spreads_experts(self) -> bool:
        return self.parallel.effective_ep > 1

    @property
    def _groups(self) -> int:
        """models/deepseek_v2.py: n_local_physical_experts is (logical + redundant) // ep_size."""
        experts = self.facts.experts
        if experts is None:
            return 0
        if not self._spreads_experts:
            return experts.num
        return (experts.num + self.server.ep_num_redundant_experts) // self.parallel.tp

    @property
    def _dense_is_whole(self) -> bool:
        kinds = self.facts.attentions(range(self.facts.num_layers))
        is_indexed = any(getattr(kind, "indexer", None) for kind in kinds)
        return self._is_sequence_parallel and is_indexed and self.version >= (0, 29, 0) and self.parallel.pp == 1

    @property
    def _is_sequence_parallel(self) -> bool:
        parallel = self.parallel
        spreads = parallel.effective_ep > 1 and parallel.attn_tp > 1 and parallel.attn_dp > 1
        return spreads and parallel.moe_a2a_backend is not A2A.pplx

    @property
    def _shared_is_whole(self) -> bool:
        model_class = class_of(self.facts)
        if not model_class.replicates_shared or self.version < model_class.replicates_shared_since:
            return False
        return self._is_sequence_parallel and (model_class.replicates_shared_over_pp or self.parallel.pp == 1)

    @property
    def _is_excluded(self) -> bool:
        if self.facts.model_type not in EXCLUDED_ON_BLACKWELL or self.version < (0, 25, 0):
            return False
        major = self.target.major_minor[0]
        return major == 10 or (major == 12 and self.version >= (0, 33, 0))
