"""SGLang 0.5.23: whether shared experts become extra routed experts, and over how many ranks they are spread.

Paths in the reasons are inside the package sglang/srt of that version.
"""

from __future__ import annotations

from pipeline.servers.sglang.deployment import SglangDeployment
from pipeline.servers.sglang.flags import FusedShared, MoeRunner
from pipeline.servers.sglang.model_classes import Fusion, class_of
from pipeline.servers.sglang.moe import runner
from pipeline.servers.sglang.schemes import experts_scheme
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import A2A, Parallel

# layers/moe/utils.py is_deepep_class_backend.
DEEPEP_CLASS = (A2A.deepep, A2A.deepep_v2, A2A.mooncake, A2A.mori, A2A.pplx)
# arg_groups/overrides.py _a2a_fusion_adjustments and _moe_runner_fusion_disable.
BACKENDS_WITHOUT_FUSION = (A2A.flashinfer, A2A.flashinfer_megamoe, A2A.deepep_v2)
RUNNERS_WITHOUT_FUSION = (
    MoeRunner.flashinfer_trtllm,
    MoeRunner.flashinfer_trtllm_routed,
    MoeRunner.flashinfer_cutedsl,
)
FUSING_ARCHITECTURES = ("DeepseekV3ForCausalLM", "GlmMoeDsaForCausalLM")
FUSING_EXPERT_COUNT = 256


def shared_tp(facts: ModelFacts, parallel: Parallel) -> int:
    """Ranks that share the shared experts: one where each rank holds them whole."""
    backend = parallel.moe_a2a_backend
    replicated_behind = class_of(facts).replicates_shared_behind
    is_replicated = backend.is_used if replicated_behind is None else backend in replicated_behind
    return 1 if is_replicated else parallel.tp


def not_fused(deployment: SglangDeployment, *, draft: bool = False) -> str | None:
    """Why the shared experts stay apart, or None when they become extra groups of the routed ones."""
    experts = deployment.facts.experts
    if experts is None or experts.num_shared == 0:
        return "the model has no shared experts"
    requested = deployment.server.shared_experts_fusion
    if requested is FusedShared.off:
        return "server.shared_experts_fusion=off"
    if requested is not FusedShared.enforced and (reason := _switched_off(deployment)) is not None:
        return reason
    return _refused_by_class(deployment, draft=draft)


def _switched_off(deployment: SglangDeployment) -> str | None:
    backend = deployment.parallel.moe_a2a_backend
    chosen = runner(deployment, experts_scheme(deployment))
    source = "arg_groups/overrides.py switches fusion off"
    if chosen in RUNNERS_WITHOUT_FUSION:
        return f"moe_runner_backend {chosen.name}: {source}"
    if backend in BACKENDS_WITHOUT_FUSION:
        return f"not fused behind {backend.name}: {source}"
    return None


def _refused_by_class(deployment: SglangDeployment, *, draft: bool) -> str | None:
    fusion = class_of(deployment.facts).fusion
    if fusion is Fusion.QWEN_NEXT:
        return _qwen_next_not_fused(deployment.facts, deployment.parallel)
    if fusion is Fusion.NEVER:
        return "Qwen3.5 fuses on no CUDA GPU (models/qwen2_moe.py)"
    if fusion is Fusion.GLM:
        return _glm_not_fused(deployment.parallel)
    if deployment.server.shared_experts_fusion is FusedShared.enforced:
        return None
    if fusion is Fusion.ENFORCED_ONLY:
        return "only with server.shared_experts_fusion=enforced (models/deepseek_v4.py)"
    return _deepseek_not_fused(deployment, draft=draft)


def _deepseek_not_fused(deployment: SglangDeployment, *, draft: bool) -> str | None:
    source = "models/deepseek_v2.py shared_experts_fusion_disable_reason"
    facts = deployment.facts
    server = deployment.server
    backend = deployment.parallel.moe_a2a_backend
    experts = facts.experts
    assert experts is not None, "called for models with shared experts only"
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
    if deployment.parallel.effective_ep != 1:
        return f"expert parallel size {deployment.parallel.effective_ep} is not 1 ({source})"
    return None


def _glm_not_fused(parallel: Parallel) -> str | None:
    source = "models/glm4_moe.py"
    if parallel.effective_ep != 1:
        return f"expert parallel size {parallel.effective_ep} is not 1 ({source})"
    if parallel.moe_a2a_backend in (A2A.deepep, A2A.mori):
        return f"not fused behind {parallel.moe_a2a_backend.name} ({source})"
    return None


def _qwen_next_not_fused(facts: ModelFacts, parallel: Parallel) -> str | None:
    source = "models/qwen2_moe.py can_fuse_shared_expert"
    experts = facts.experts
    assert experts is not None, "called for models with shared experts only"
    if experts.shared_intermediate != experts.intermediate:
        return f"the shared expert has another size ({source})"
    if parallel.moe_a2a_backend in (A2A.deepep, A2A.deepep_v2, A2A.mori):
        return f"not fused behind {parallel.moe_a2a_backend.name} ({source})"
    if parallel.effective_ep > 1 and parallel.moe_a2a_backend in (*DEEPEP_CLASS, A2A.megamoe):
        return f"each rank would need its own slot behind {parallel.moe_a2a_backend.name} ({source})"
    return None
