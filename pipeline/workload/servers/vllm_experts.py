"""vLLM: which backend runs the experts, in which layout (model_executor/layers/fused_moe/oracle/fp8.py)."""

from __future__ import annotations

from pipeline.workload.families.deepseek_v4 import FP4_EXPERTS
from pipeline.workload.linears import Linear
from pipeline.workload.parallel import A2A
from pipeline.workload.problems import Kernel, MList, Options
from pipeline.workload.servers import DeepEpMode, MoeRunner, Warmup, vllm_warmup
from pipeline.workload.servers.rules import Deployment, Use
from pipeline.workload.servers.vllm_versions import Version

BATCHED = "batched"
CONTIGUOUS = "contiguous"
TRTLLM = "trtllm"
CUTLASS = "flashinfer_cutlass"
TRITON = "triton"
# batched_deep_gemm_moe.py: expected_m is rounded up to this.
EXPECTED_M_STEP = 16
ALIGNMENT = 128
# Sizes past which no measured shape selects another kernel (docs/kernels.md).
LAST_M = 16384


def is_batched(at: Deployment) -> bool:
    """Whether each expert's rows come in a block of their own."""
    backend = at.parallel.moe_a2a_backend
    low = backend is A2A.deepep and at.server.deepep_mode is DeepEpMode.low_latency
    return at.parallel.attn_dp > 1 and at.parallel.effective_ep > 1 and (low or backend is A2A.pplx)


def backend(at: Deployment, version: Version) -> str:
    """The backend of block-FP8 experts."""
    server = at.server
    asked = at.server.moe_runner_backend
    spreads = at.parallel.effective_ep > 1
    if server.moe_use_deep_gemm is False or asked not in (MoeRunner.auto, MoeRunner.deep_gemm):
        return asked.name if asked is not MoeRunner.auto else "another backend"
    if is_batched(at):
        return BATCHED
    if server.moe_use_deep_gemm or server.use_deep_gemm or asked is MoeRunner.deep_gemm:
        return CONTIGUOUS
    if version < (0, 15, 0):
        is_narrow = not spreads and at.parallel.tp >= 8 and version >= (0, 12, 0)
        return TRITON if is_narrow else CONTIGUOUS
    if at.target.major_minor[0] in (10, 11) and not (at.parallel.attn_dp > 1 and spreads):
        return TRTLLM
    if not at.is_sm90:
        return CONTIGUOUS
    return CUTLASS if spreads or version < (0, 17, 0) else TRITON


def reason(at: Deployment, version: Version) -> str | None:
    """Why DeepGEMM does not run the experts, or None."""
    source = "model_executor/layers/fused_moe/oracle/fp8.py"
    facts = at.facts
    if facts.experts is not None and facts.experts.scheme == FP4_EXPERTS:
        return f"FP4 experts run another backend ({source})"
    if facts.quantization.block != (128, 128):
        return f"experts are {facts.quantization.scheme}, not FP8 with 128x128 scale blocks ({source})"
    chosen = backend(at, version)
    # Releases that warm grouped products whatever the backend still serve them elsewhere; what is warmed is listed.
    if chosen in (BATCHED, CONTIGUOUS) or warms_any(at, version):
        return None
    return f"the experts run {chosen} ({source}); set server.moe_runner_backend=deep_gemm"


def warms_any(at: Deployment, version: Version) -> bool:
    """Whether the start-up launches the contiguous products although another backend may serve them (before 0.20)."""
    if version >= (0, 20, 0) or at.server.moe_use_deep_gemm is False or at.facts.experts is None:
        return False
    chosen = backend(at, version)
    if version >= (0, 17, 0):
        return True
    if version >= (0, 14, 0) and chosen == TRTLLM:
        return False
    spreads = at.parallel.attn_dp > 1 and at.parallel.effective_ep > 1
    is_modular = spreads and at.parallel.moe_a2a_backend in (A2A.deepep, A2A.pplx)
    return not (version < (0, 16, 0) and is_modular) or chosen == CONTIGUOUS


def uses(at: Deployment, version: Version, linear: Linear, chunk: int) -> list[Use]:
    """Masked products of the batched backend, contiguous ones of the other, and what only the start-up launches."""
    experts = at.facts.experts
    tokens = chunk * at.parallel.attn_dp
    assert experts is not None
    found: list[Use] = []
    chosen = backend(at, version)
    calls = _warmup_calls(at, version, linear, tokens)
    if chosen == BATCHED:
        largest = max(EXPECTED_M_STEP, min(tokens, LAST_M))
        m = MList((range(EXPECTED_M_STEP, largest + 1, EXPECTED_M_STEP),))
        found.append(Use(Kernel.MASKED, "fused_moe/experts/batched_deep_gemm_moe.py", m, (), 0))
    if chosen == CONTIGUOUS or calls:
        rows = tokens * experts.top_k + linear.groups * (ALIGNMENT - 1)
        m = MList((range(ALIGNMENT, min(-(-rows // ALIGNMENT) * ALIGNMENT, LAST_M) + 1, ALIGNMENT),))
        rule = "fused_moe/experts/deep_gemm_moe.py"
        found.append(Use(Kernel.CONTIGUOUS, rule, m, (), calls))
        if chosen == CONTIGUOUS and version >= (0, 32, 0):
            options: Options = (("psum", 1),)
            found.append(Use(Kernel.CONTIGUOUS, f"{rule}: psum layout, not warmed", m, options, 0))
    return found


def _warmup_calls(at: Deployment, version: Version, linear: Linear, tokens: int) -> int | None:
    experts = at.facts.experts
    if at.server.warmup is Warmup.skip or at.server.moe_use_deep_gemm is False or experts is None:
        return 0
    if backend(at, version) != CONTIGUOUS and not warms_any(at, version):
        return 0
    rows = vllm_warmup.grouped_rows(
        version,
        tokens=tokens,
        top_k=experts.top_k,
        groups=linear.groups,
        widest=max(2 * experts.intermediate, at.facts.hidden),
        num_sms=at.target.num_sms if at.is_sm90 else None,
    )
    return None if rows is None else len(rows)
