"""vLLM: which backend runs the experts, in which layout (model_executor/layers/fused_moe/oracle/fp8.py)."""

from __future__ import annotations

from pipeline.virtual_gpu.targets import Target
from pipeline.workload.families.deepseek_v4 import FP4_EXPERTS
from pipeline.workload.linears import Linear
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import A2A, Parallel
from pipeline.workload.problems import Kernel, MList, Options
from pipeline.workload.servers import DeepEpMode, MoeRunner, Server, Warmup, vllm_warmup
from pipeline.workload.servers.rules import Use
from pipeline.workload.servers.vllm_versions import Version

BATCHED, CONTIGUOUS, TRTLLM, CUTLASS, TRITON = "batched", "contiguous", "trtllm", "flashinfer_cutlass", "triton"
# batched_deep_gemm_moe.py: expected_m is rounded up to this.
EXPECTED_M_STEP = 16
ALIGNMENT = 128
# Sizes past which no measured shape selects another kernel (docs/kernels.md).
LAST_M = 16384


def is_batched(server: Server, parallel: Parallel) -> bool:
    """Whether each expert's rows come in a block of their own."""
    low = parallel.moe_a2a_backend is A2A.deepep and server.deepep_mode is DeepEpMode.low_latency
    return parallel.attn_dp > 1 and parallel.effective_ep > 1 and (low or parallel.moe_a2a_backend is A2A.pplx)


def backend(server: Server, parallel: Parallel, target: Target, version: Version) -> str:
    """The backend of block-FP8 experts."""
    asked, spreads = server.moe_runner_backend, parallel.effective_ep > 1
    if server.moe_use_deep_gemm is False or asked not in (MoeRunner.auto, MoeRunner.deep_gemm):
        return asked.name if asked is not MoeRunner.auto else "another backend"
    wants = server.moe_use_deep_gemm or server.use_deep_gemm or asked is MoeRunner.deep_gemm
    if is_batched(server, parallel):
        return BATCHED
    if wants:
        return CONTIGUOUS
    if version < (0, 15, 0):
        narrow = not spreads and parallel.tp >= 8 and version >= (0, 12, 0)
        return TRITON if narrow else CONTIGUOUS
    is_sm90, major = target.major_minor == (9, 0), target.major_minor[0]
    if major in (10, 11) and not (parallel.attn_dp > 1 and spreads):
        return TRTLLM
    if not is_sm90:
        return CONTIGUOUS
    return CUTLASS if spreads or version < (0, 17, 0) else TRITON


def reason(facts: ModelFacts, server: Server, parallel: Parallel, target: Target, version: Version) -> str | None:
    """Why DeepGEMM does not run the experts, or None."""
    source = "model_executor/layers/fused_moe/oracle/fp8.py"
    if facts.experts is not None and facts.experts.scheme == FP4_EXPERTS:
        return f"FP4 experts run another backend ({source})"
    if facts.quantization.block != (128, 128):
        return f"experts are {facts.quantization.scheme}, not FP8 with 128x128 scale blocks ({source})"
    chosen = backend(server, parallel, target, version)
    if chosen in (BATCHED, CONTIGUOUS):
        return None
    # Releases that warm grouped products whatever the backend still serve them elsewhere; the list is what is warmed.
    if warms_any(facts, server, parallel, target, version):
        return None
    return f"the experts run {chosen} ({source}); set server.moe_runner_backend=deep_gemm"


def warms_any(facts: ModelFacts, server: Server, parallel: Parallel, target: Target, version: Version) -> bool:
    """Whether the start-up launches the contiguous products although another backend may serve them (before 0.20)."""
    if version >= (0, 20, 0) or server.moe_use_deep_gemm is False or facts.experts is None:
        return False
    chosen = backend(server, parallel, target, version)
    if version >= (0, 17, 0):
        return True
    if version >= (0, 14, 0) and chosen == TRTLLM:
        return False
    is_modular = (
        parallel.attn_dp > 1 and parallel.effective_ep > 1 and parallel.moe_a2a_backend in (A2A.deepep, A2A.pplx)
    )
    return not (version < (0, 16, 0) and is_modular) or chosen == CONTIGUOUS


def uses(
    linear: Linear, facts: ModelFacts, server: Server, parallel: Parallel, target: Target, version: Version, chunk: int
) -> list[Use]:
    """Masked products of the batched backend, contiguous ones of the other, and what only the start-up launches."""
    experts = facts.experts
    assert experts is not None
    found: list[Use] = []
    chosen = backend(server, parallel, target, version)
    calls = _warmup_calls(linear, facts, server, parallel, target, version, chunk)
    if chosen == BATCHED:
        most = chunk * parallel.attn_dp
        m = MList((range(EXPECTED_M_STEP, max(EXPECTED_M_STEP, min(most, LAST_M)) + 1, EXPECTED_M_STEP),))
        found.append(Use(Kernel.MASKED, "fused_moe/experts/batched_deep_gemm_moe.py", m, (), 0))
    if chosen == CONTIGUOUS or calls:
        rows = chunk * parallel.attn_dp * experts.top_k + linear.groups * (ALIGNMENT - 1)
        m = MList((range(ALIGNMENT, min(-(-rows // ALIGNMENT) * ALIGNMENT, LAST_M) + 1, ALIGNMENT),))
        rule = "fused_moe/experts/deep_gemm_moe.py"
        found.append(Use(Kernel.CONTIGUOUS, rule, m, (), calls))
        if chosen == CONTIGUOUS and version >= (0, 32, 0):
            options: Options = (("psum", 1),)
            found.append(Use(Kernel.CONTIGUOUS, f"{rule}: psum layout, not warmed", m, options, 0))
    return found


def _warmup_calls(
    linear: Linear, facts: ModelFacts, server: Server, parallel: Parallel, target: Target, version: Version, chunk: int
) -> int | None:
    if server.warmup is Warmup.skip or server.moe_use_deep_gemm is False:
        return 0
    experts, chosen = facts.experts, backend(server, parallel, target, version)
    assert experts is not None
    if chosen != CONTIGUOUS and not warms_any(facts, server, parallel, target, version):
        return 0
    rows = vllm_warmup.grouped_rows(
        version,
        tokens=chunk * parallel.attn_dp,
        top_k=experts.top_k,
        groups=linear.groups,
        sides=(2 * experts.intermediate, facts.hidden),
        num_sms=target.num_sms,
        is_sm90=target.major_minor == (9, 0),
    )
    return None if rows is None else len(rows)
