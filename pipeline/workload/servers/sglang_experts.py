"""SGLang 0.5.23: who runs the experts, where the shared ones are, and in which layout the routed ones lie.

Paths in the rules are inside the package sglang/srt of that version.
"""

from __future__ import annotations

from pipeline.workload.families.deepseek_v4 import FP4_EXPERTS
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import A2A, Parallel
from pipeline.workload.problems import Kernel
from pipeline.workload.servers import DeepEpMode, FusedShared, MoeRunner, PdRole
from pipeline.workload.servers.rules import Deployment

# layers/quantization/fp8.py create_moe_runner; deepep_v2 and pplx: arg_groups/moe_hook.py.
A2A_ON_DEEPGEMM = (A2A.deepep, A2A.mooncake, A2A.nixl, A2A.deepep_v2, A2A.pplx)
# moe_runner/deep_gemm.py: what the masked kernel of a clamped activation asks of a row, by local expert and in all.
CLAMPED_PART = 8
CLAMPED_MULTIPLE = 512
# layers/moe/utils.py is_deepep_class_backend.
DEEPEP_CLASS = (A2A.deepep, A2A.deepep_v2, A2A.mooncake, A2A.mori, A2A.pplx)
# arg_groups/overrides.py _a2a_fusion_adjustments and _moe_runner_fusion_disable.
A2A_SWITCH_FUSION_OFF = (A2A.flashinfer, A2A.flashinfer_megamoe, A2A.deepep_v2)
RUNNERS_SWITCH_FUSION_OFF = (
    MoeRunner.flashinfer_trtllm, MoeRunner.flashinfer_trtllm_routed, MoeRunner.flashinfer_cutedsl,
)  # fmt: skip
# Where each rank holds the shared experts whole: models/deepseek_v2.py, glm4_moe.py, qwen2_moe.py.
REPLICATED_SHARED = {
    "glm4_moe": (A2A.deepep, A2A.mooncake, A2A.nixl, A2A.mori, A2A.flashinfer, A2A.flashinfer_megamoe),
    "qwen3_next": (
        A2A.deepep, A2A.deepep_v2, A2A.mori, A2A.flashinfer, A2A.flashinfer_megamoe, A2A.megamoe,
    ),
}  # fmt: skip
REPLICATED_SHARED["qwen3_5"] = REPLICATED_SHARED["qwen3_next"]
# arg_groups/overrides.py and model_overrides/: auto becomes flashinfer_trtllm on sm_100 for these, without a backend.
TRTLLM_FAMILIES = ("deepseek", "qwen3_moe", "qwen3_next", "qwen3_5", "mimo_v2")
FUSING_ARCHITECTURES = ("DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM")
FUSING_EXPERT_COUNT = 256


def runner(at: Deployment) -> MoeRunner:
    """The runner that auto becomes; Triton where nothing else is chosen."""
    facts = at.facts
    asked = at.server.moe_runner_backend
    backend = at.parallel.moe_a2a_backend
    if asked is not MoeRunner.auto:
        return asked
    if facts.quantization.is_compressed_tensors:
        return MoeRunner.triton
    if backend in A2A_ON_DEEPGEMM:
        return MoeRunner.deep_gemm if facts.quantization.block else MoeRunner.triton
    if facts.experts is not None and facts.experts.scheme == FP4_EXPERTS:
        return MoeRunner.flashinfer_mxfp4
    if at.is_sm100 and backend is A2A.none and facts.family in TRTLLM_FAMILIES:
        return MoeRunner.flashinfer_trtllm
    return MoeRunner.triton


def runner_problems(at: Deployment) -> list[str]:
    """Experts that SGLang hands to a runner and then fails, at load or at the first request."""
    experts = at.facts.experts
    quantization = at.facts.quantization
    backend = at.parallel.moe_a2a_backend
    if experts is None:
        return []
    is_told = at.server.moe_runner_backend is MoeRunner.deep_gemm
    if (experts.scheme == FP4_EXPERTS or quantization.method == "mxfp4") and _is_deep_gemm_before_sm100(at):
        why = "would call DeepGEMM with FP4 experts (expert_dtype), which it takes from sm_100 on,"
    elif quantization.is_compressed_tensors and is_told:
        why = "has no DeepGEMM runner for compressed-tensors experts"
    elif quantization.is_compressed_tensors and backend in A2A_ON_DEEPGEMM:
        # layers/moe/ep_moe/layer.py run_moe_core.
        why = "has no path for compressed-tensors experts behind it"
    else:
        return []
    if is_told:
        return [f"server.moe_runner_backend=deep_gemm: SGLang {why} and would fail; set it to auto"]
    return [f"parallel.moe_a2a_backend={backend.value}: SGLang {why} and would fail; set it to none"]


def _is_deep_gemm_before_sm100(at: Deployment) -> bool:
    return runner(at) is MoeRunner.deep_gemm and not at.is_sm100


def not_fused(at: Deployment, *, draft: bool = False) -> str | None:
    """Why the shared experts stay apart, or None when they become extra groups of the routed ones."""
    facts = at.facts
    server = at.server
    parallel = at.parallel
    experts = facts.experts
    if experts is None or experts.num_shared == 0:
        return "the model has no shared experts"
    if server.shared_experts_fusion is FusedShared.off:
        return "server.shared_experts_fusion=off"
    backend = parallel.moe_a2a_backend
    chosen = runner(at)
    switched = "arg_groups/overrides.py switches fusion off"
    enforced = server.shared_experts_fusion is FusedShared.enforced
    if not enforced and chosen in RUNNERS_SWITCH_FUSION_OFF:
        return f"moe_runner_backend {chosen.name}: {switched}"
    if not enforced and backend in A2A_SWITCH_FUSION_OFF:
        return f"not fused behind {backend.name}: {switched}"
    if facts.family == "qwen3_next":
        return _next_not_fused(facts, parallel)
    if facts.family == "qwen3_5":
        return "Qwen3.5 fuses on no CUDA GPU (models/qwen2_moe.py)"
    if facts.family == "glm4_moe":
        return _glm_not_fused(parallel)
    if enforced:
        return None
    if facts.family == "deepseek_v4":
        return "only with server.shared_experts_fusion=enforced (models/deepseek_v4.py)"
    return _deepseek_not_fused(at, draft=draft)


def _deepseek_not_fused(at: Deployment, *, draft: bool) -> str | None:
    source = "models/deepseek_v2.py shared_experts_fusion_disable_reason"
    facts = at.facts
    server = at.server
    parallel = at.parallel
    experts = facts.experts
    backend = parallel.moe_a2a_backend
    assert experts is not None
    if server.enable_two_batch_overlap or server.enable_single_batch_overlap:
        return f"batch overlap is on ({source})"
    if backend in DEEPEP_CLASS:
        return f"not fused behind {backend.name} ({source})"
    # A V3.2 draft is renamed DeepseekV3ForCausalLMNextN, whose class names itself (models/deepseek_nextn.py).
    if not draft and facts.architecture not in FUSING_ARCHITECTURES:
        return f"{facts.architecture} is not {' or '.join(FUSING_ARCHITECTURES)} ({source})"
    if experts.num != FUSING_EXPERT_COUNT:
        return f"{experts.num} experts, fusion wants {FUSING_EXPERT_COUNT} ({source})"
    if experts.num_shared != 1:
        return f"{experts.num_shared} shared experts, fusion wants 1 ({source})"
    if parallel.effective_ep != 1:
        return f"expert parallel size {parallel.effective_ep} is not 1 ({source})"
    return None


def _glm_not_fused(parallel: Parallel) -> str | None:
    source = "models/glm4_moe.py"
    if parallel.effective_ep != 1:
        return f"expert parallel size {parallel.effective_ep} is not 1 ({source})"
    if parallel.moe_a2a_backend in (A2A.deepep, A2A.mori):
        return f"not fused behind {parallel.moe_a2a_backend.name} ({source})"
    return None


def _next_not_fused(facts: ModelFacts, parallel: Parallel) -> str | None:
    source = "models/qwen2_moe.py can_fuse_shared_expert"
    experts = facts.experts
    assert experts is not None
    if experts.shared_intermediate != experts.intermediate:
        return f"the shared expert has another size ({source})"
    if parallel.moe_a2a_backend in (A2A.deepep, A2A.deepep_v2, A2A.mori):
        return f"not fused behind {parallel.moe_a2a_backend.name} ({source})"
    if parallel.effective_ep > 1 and parallel.moe_a2a_backend in (*DEEPEP_CLASS, A2A.megamoe):
        return f"each rank would need its own slot behind {parallel.moe_a2a_backend.name} ({source})"
    return None


def shared_tp(facts: ModelFacts, parallel: Parallel) -> int:
    """Ranks that share the shared experts: one where each rank holds them whole."""
    backend = parallel.moe_a2a_backend
    replicated = REPLICATED_SHARED.get(facts.family)
    whole = backend.is_used if replicated is None else backend in replicated
    return 1 if whole else parallel.tp


def experts_reason(at: Deployment) -> str | None:
    """Why the experts' runner is not DeepGEMM under these flags, or None when it is."""
    source = "layers/quantization/fp8.py is_deepgemm_moe_runner_backend_enabled"
    facts = at.facts
    server = at.server
    chosen = runner(at)
    backend = at.parallel.moe_a2a_backend.name
    if chosen is MoeRunner.deep_gemm:
        # FP4 experts come here for sm_100 alone: runner_problems refuses the others.
        is_fp4 = facts.experts is not None and facts.experts.scheme == FP4_EXPERTS
        return None if is_fp4 else _experts_scheme_reason(facts)
    if server.moe_runner_backend is not MoeRunner.auto:
        return f"server.moe_runner_backend={chosen.name} ({source})"
    if facts.quantization.is_compressed_tensors:
        return "compressed-tensors experts run Triton (compressed_tensors_w8a8_fp8_moe.py has no DeepGEMM runner)"
    served_by = {MoeRunner.triton: "Triton fused MoE", MoeRunner.flashinfer_trtllm: "FlashInfer trtllm-gen MoE"}
    return (
        f"moe_runner_backend=auto with moe_a2a_backend={backend} runs {served_by.get(chosen, chosen.name)} "
        f"({source}); set server.moe_runner_backend=deep_gemm, or an all-to-all backend such as deepep"
    )


def _experts_scheme_reason(facts: ModelFacts) -> str | None:
    quantization = facts.quantization
    if quantization.block is None and quantization.method is None:
        return None
    if quantization.block != (128, 128):
        return f"experts are {quantization.scheme}; the DeepGEMM runner takes FP8 with 128x128 scale blocks"
    return None


def kernels(at: Deployment) -> list[tuple[Kernel, str]]:
    """The grouped kernels of the DeepGEMM runner and the rule that needs each (layers/moe/moe_runner/deep_gemm.py)."""
    server = at.server
    backend = at.parallel.moe_a2a_backend
    masked, contiguous = _of_scheme(at.facts)
    if not backend.is_used:
        compact = "standard dispatch, compact layout: moe_runner/deep_gemm.py _get_compact_all_tokens"
        if _is_always_compact(at):
            return [(contiguous, compact)]
        rule = "standard dispatch, masked layout: moe_runner/deep_gemm.py _should_use_masked_standard_layout"
        return [(masked, rule), (contiguous, compact)]
    mode = DeepEpMode.low_latency if backend is A2A.pplx else server.deepep_mode
    found: list[tuple[Kernel, str]] = []
    if mode is not DeepEpMode.low_latency and server.disaggregation_mode is not PdRole.decode:
        found.append((contiguous, f"{backend.name} normal dispatch (prefill): token_dispatcher/deepep.py"))
    if mode is not DeepEpMode.normal and server.disaggregation_mode is not PdRole.prefill:
        found.append((masked, f"{backend.name} low-latency dispatch (decode): token_dispatcher/deepep.py"))
    return found


def _is_always_compact(at: Deployment) -> bool:
    """Whether the masked layout's clamped activation lacks these sizes (_masked_activation_unsupported_reason)."""
    experts = at.facts.experts
    if experts is None or not experts.is_clamped:
        return False
    width = experts.intermediate // at.parallel.moe_tp
    local = experts.num // at.parallel.effective_ep
    return width // CLAMPED_PART < local or width % CLAMPED_MULTIPLE != 0


def _of_scheme(facts: ModelFacts) -> tuple[Kernel, Kernel]:
    if facts.experts is not None and facts.experts.scheme == FP4_EXPERTS:
        return Kernel.FP4_MASKED, Kernel.FP4_CONTIGUOUS
    if facts.quantization.block is None:
        return Kernel.BF16_MASKED, Kernel.BF16_CONTIGUOUS
    return Kernel.MASKED, Kernel.CONTIGUOUS
