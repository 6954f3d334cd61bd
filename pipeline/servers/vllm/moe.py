"""vLLM: which backend runs the experts, in which layout (model_executor/layers/fused_moe/oracle/fp8.py)."""

from __future__ import annotations

from dataclasses import replace

from pipeline.arithmetic import round_up
from pipeline.servers.rules import Use
from pipeline.servers.shared.contiguous_layout import ALIGNMENT
from pipeline.servers.shared.problems import Kernel, MList
from pipeline.servers.vllm import warmup
from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.servers.vllm.flags import DeepEpDispatch, MoeBackend, Warmup
from pipeline.servers.vllm.versions import Version
from pipeline.workload.linears import Linear
from pipeline.workload.parallel import A2A
from pipeline.workload.scheme import Scheme

BATCHED = "batched"
CONTIGUOUS = "contiguous"
TRTLLM = "trtllm"
CUTLASS = "flashinfer_cutlass"
TRITON = "triton"
# batched_deep_gemm_moe.py: expected_m is rounded up to this.
EXPECTED_M_STEP = 16
# Sizes past which no measured shape selects another kernel (docs/kernels.md).
LAST_M = 16384


def is_batched(deployment: VllmDeployment) -> bool:
    """Whether each expert's rows come in a block of their own."""
    all_to_all = deployment.parallel.moe_a2a_backend
    is_low_latency = all_to_all is A2A.deepep and deployment.server.deepep_mode is DeepEpDispatch.low_latency
    return _dispatches(deployment) and (is_low_latency or all_to_all is A2A.pplx)


def backend(deployment: VllmDeployment, version: Version) -> str:
    """The backend of block-FP8 experts."""
    server = deployment.server
    requested = server.moe_runner_backend
    if server.moe_use_deep_gemm is False or requested not in (MoeBackend.auto, MoeBackend.deep_gemm):
        return requested.name if requested is not MoeBackend.auto else "another backend"
    if is_batched(deployment):
        return BATCHED
    if server.moe_use_deep_gemm or server.use_deep_gemm or requested is MoeBackend.deep_gemm:
        return CONTIGUOUS
    return _own_choice(deployment, version)


def _own_choice(deployment: VllmDeployment, version: Version) -> str:
    """The backend where no flag names one."""
    spreads = deployment.parallel.spreads_experts
    if version < (0, 15, 0):
        is_narrow = not spreads and deployment.parallel.tp >= 8 and version >= (0, 12, 0)
        return TRITON if is_narrow else CONTIGUOUS
    if deployment.target.major_minor[0] in (10, 11) and not _dispatches(deployment):
        return TRTLLM
    if not deployment.is_sm90:
        return CONTIGUOUS
    return CUTLASS if spreads or version < (0, 17, 0) else TRITON


def _dispatches(deployment: VllmDeployment) -> bool:
    """Whether tokens of several engines go to the ranks that hold their experts."""
    return deployment.parallel.attn_dp > 1 and deployment.parallel.spreads_experts


def reason(deployment: VllmDeployment, version: Version, scheme: Scheme) -> str | None:
    """Why DeepGEMM does not run experts of this scheme, or None."""
    source = "model_executor/layers/fused_moe/oracle/fp8.py"
    facts = deployment.facts
    if facts.has_fp4_experts:
        return f"FP4 experts run another backend ({source})"
    if scheme.block != (128, 128):
        return f"experts are {scheme.text}, not FP8 with 128x128 scale blocks ({source})"
    chosen = backend(deployment, version)
    # Releases that warm grouped products whatever the backend still serve them elsewhere; what is warmed is listed.
    if chosen in (BATCHED, CONTIGUOUS) or warms_any(deployment, version):
        return None
    return f"the experts run {chosen} ({source}); set server.moe_runner_backend=deep_gemm"


def warms_any(deployment: VllmDeployment, version: Version) -> bool:
    """Whether the start-up launches the contiguous products although another backend may serve them (before 0.20)."""
    if version >= (0, 20, 0) or deployment.server.moe_use_deep_gemm is False or deployment.facts.experts is None:
        return False
    chosen = backend(deployment, version)
    if version >= (0, 17, 0):
        return True
    if version >= (0, 14, 0) and chosen == TRTLLM:
        return False
    is_modular = _dispatches(deployment) and deployment.parallel.moe_a2a_backend in (A2A.deepep, A2A.pplx)
    return not (version < (0, 16, 0) and is_modular) or chosen == CONTIGUOUS


def uses(deployment: VllmDeployment, version: Version, linear: Linear, chunk: int) -> list[Use]:
    """Masked products of the batched backend, contiguous ones of the other, and what only the start-up launches."""
    experts = deployment.facts.experts
    assert experts is not None, "called for a linear of the experts only"
    tokens = chunk * deployment.parallel.attn_dp
    chosen = backend(deployment, version)
    calls = _warmup_calls(deployment, version, linear, tokens)
    served: list[Use] = []
    if chosen == BATCHED:
        served.append(_masked(tokens))
    if chosen == CONTIGUOUS or calls:
        contiguous = _contiguous(tokens * experts.top_k, linear.groups, calls)
        served.append(contiguous)
        if chosen == CONTIGUOUS and version >= (0, 32, 0):
            rule = f"{contiguous.rule}: psum layout, not warmed"
            served.append(replace(contiguous, rule=rule, options=(("psum", 1),), warmup_calls=0))
    return served


def _masked(tokens: int) -> Use:
    largest = max(EXPECTED_M_STEP, min(tokens, LAST_M))
    return Use(
        kernel=Kernel.MASKED,
        rule="fused_moe/experts/batched_deep_gemm_moe.py",
        m=MList((range(EXPECTED_M_STEP, largest + 1, EXPECTED_M_STEP),)),
        warmup_calls=0,
    )


def _contiguous(num_routes: int, groups: int, warmup_calls: int | None) -> Use:
    rows = round_up(num_routes + groups * (ALIGNMENT - 1), ALIGNMENT)
    return Use(
        kernel=Kernel.CONTIGUOUS,
        rule="fused_moe/experts/deep_gemm_moe.py",
        m=MList((range(ALIGNMENT, min(rows, LAST_M) + 1, ALIGNMENT),)),
        warmup_calls=warmup_calls,
    )


def _warmup_calls(deployment: VllmDeployment, version: Version, linear: Linear, tokens: int) -> int | None:
    experts = deployment.facts.experts
    if deployment.server.warmup is Warmup.skip or deployment.server.moe_use_deep_gemm is False or experts is None:
        return 0
    if backend(deployment, version) != CONTIGUOUS and not warms_any(deployment, version):
        return 0
    rows = warmup.grouped_rows(deployment, version, experts, tokens=tokens, groups=linear.groups)
    return None if rows is None else len(rows)
