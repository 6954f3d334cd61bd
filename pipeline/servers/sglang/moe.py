"""SGLang 0.5.23: which kernels run the routed experts, and in which layout their rows lie.

Paths in the rules are inside the package sglang/srt of that version.
"""

from __future__ import annotations

from pipeline.servers.sglang.deployment import SglangDeployment
from pipeline.servers.sglang.flags import DeepEpMode, MoeRunner, PdRole
from pipeline.servers.sglang.model_classes import class_of
from pipeline.servers.shared.problems import Kernel
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import A2A
from pipeline.workload.scheme import Format, Scheme

COMPRESSED_TENSORS = "compressed-tensors"
# layers/quantization/fp8.py create_moe_runner; deepep_v2 and pplx: arg_groups/moe_hook.py.
A2A_ON_DEEPGEMM = (A2A.deepep, A2A.mooncake, A2A.nixl, A2A.deepep_v2, A2A.pplx)
# moe_runner/deep_gemm.py: what the masked kernel of a clamped activation asks of a row, by local expert and in all.
CLAMPED_PART = 8
CLAMPED_MULTIPLE = 512


def runner(deployment: SglangDeployment, scheme: Scheme) -> MoeRunner:
    """The runner that auto becomes for experts of this scheme; Triton where nothing else is chosen."""
    facts = deployment.facts
    requested = deployment.server.moe_runner_backend
    backend = deployment.parallel.moe_a2a_backend
    if requested is not MoeRunner.auto:
        return requested
    if scheme.method == COMPRESSED_TENSORS:
        return MoeRunner.triton
    if backend in A2A_ON_DEEPGEMM:
        return MoeRunner.deep_gemm if scheme.block else MoeRunner.triton
    if facts.has_fp4_experts:
        return MoeRunner.flashinfer_mxfp4
    if deployment.is_sm100 and backend is A2A.none and class_of(facts).takes_trtllm_on_sm100:
        return MoeRunner.flashinfer_trtllm
    return MoeRunner.triton


def experts_reason(deployment: SglangDeployment, scheme: Scheme) -> str | None:
    """Why the runner of experts of this scheme is not DeepGEMM under these flags, or None when it is."""
    source = "layers/quantization/fp8.py is_deepgemm_moe_runner_backend_enabled"
    facts = deployment.facts
    server = deployment.server
    chosen = runner(deployment, scheme)
    backend = deployment.parallel.moe_a2a_backend.name
    if chosen is MoeRunner.deep_gemm:
        # FP4 experts come here on sm_100 alone: refusals.py refuses the others.
        return None if facts.has_fp4_experts else _scheme_reason(deployment, scheme)
    if server.moe_runner_backend is not MoeRunner.auto:
        return f"server.moe_runner_backend={chosen.name} ({source})"
    if scheme.method == COMPRESSED_TENSORS:
        return "compressed-tensors experts run Triton (compressed_tensors_w8a8_fp8_moe.py has no DeepGEMM runner)"
    served_by = {MoeRunner.triton: "Triton fused MoE", MoeRunner.flashinfer_trtllm: "FlashInfer trtllm-gen MoE"}
    return (
        f"moe_runner_backend=auto with moe_a2a_backend={backend} runs {served_by.get(chosen, chosen.name)} "
        f"({source}); set server.moe_runner_backend=deep_gemm, or an all-to-all backend such as deepep"
    )


def _scheme_reason(deployment: SglangDeployment, scheme: Scheme) -> str | None:
    if scheme.format is Format.PLAIN:
        # Only UnquantizedFusedMoEMethod of a checkpoint without any method knows the bf16 kernels.
        is_quantised = deployment.quantization.method is not None
        return "the checkpoint keeps its experts unquantised, Triton serves them" if is_quantised else None
    if scheme.block != (128, 128):
        return f"experts are {scheme.text}; the DeepGEMM runner takes FP8 with 128x128 scale blocks"
    return None


def kernels(deployment: SglangDeployment, scheme: Scheme) -> list[tuple[Kernel, str]]:
    """The grouped kernels of the DeepGEMM runner and the rule that needs each (layers/moe/moe_runner/deep_gemm.py)."""
    if deployment.parallel.moe_a2a_backend.is_used:
        return _all_to_all_kernels(deployment, scheme)
    masked, contiguous = _of_scheme(deployment.facts, scheme)
    compact = "standard dispatch, compact layout: moe_runner/deep_gemm.py _get_compact_all_tokens"
    if _is_always_compact(deployment):
        return [(contiguous, compact)]
    rule = "standard dispatch, masked layout: moe_runner/deep_gemm.py _should_use_masked_standard_layout"
    return [(masked, rule), (contiguous, compact)]


def _all_to_all_kernels(deployment: SglangDeployment, scheme: Scheme) -> list[tuple[Kernel, str]]:
    server = deployment.server
    backend = deployment.parallel.moe_a2a_backend
    masked, contiguous = _of_scheme(deployment.facts, scheme)
    mode = DeepEpMode.low_latency if backend is A2A.pplx else server.deepep_mode
    kernels_with_rules: list[tuple[Kernel, str]] = []
    if mode is not DeepEpMode.low_latency and server.disaggregation_mode is not PdRole.decode:
        rule = f"{backend.name} normal dispatch (prefill): token_dispatcher/deepep.py"
        kernels_with_rules.append((contiguous, rule))
    if mode is not DeepEpMode.normal and server.disaggregation_mode is not PdRole.prefill:
        rule = f"{backend.name} low-latency dispatch (decode): token_dispatcher/deepep.py"
        kernels_with_rules.append((masked, rule))
    return kernels_with_rules


def _is_always_compact(deployment: SglangDeployment) -> bool:
    """Whether the masked layout's clamped activation lacks these sizes (_masked_activation_unsupported_reason)."""
    experts = deployment.facts.experts
    if experts is None or not experts.is_clamped:
        return False
    width = experts.intermediate // deployment.parallel.moe_tp
    local = experts.num // deployment.parallel.effective_ep
    return width // CLAMPED_PART < local or width % CLAMPED_MULTIPLE != 0


def _of_scheme(facts: ModelFacts, scheme: Scheme) -> tuple[Kernel, Kernel]:
    if facts.has_fp4_experts:
        return Kernel.FP4_MASKED, Kernel.FP4_CONTIGUOUS
    if scheme.block is None:
        return Kernel.BF16_MASKED, Kernel.BF16_CONTIGUOUS
    return Kernel.MASKED, Kernel.CONTIGUOUS
