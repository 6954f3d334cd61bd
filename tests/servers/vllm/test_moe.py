"""Which backend runs the experts, in which layout."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.servers.derive import Workload
from pipeline.servers.shared.problems import Kernel
from pipeline.servers.vllm.flags import DeepEpDispatch, MoeBackend
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.vllm.derived import EP8, TP8, vllm


def kernels(workload: Workload) -> set[tuple[Kernel, bool]]:
    return {(p.kernel, ("psum", 1) in p.options) for p in workload.problems if "mlp.experts.w13" in p.linears}


@pytest.mark.parametrize(
    ("parallel", "flags", "version", "expected"),
    [
        (TP8, {}, "0.33.0", set()),
        (TP8, {"moe_runner_backend": MoeBackend.deep_gemm}, "0.31.0", {(Kernel.CONTIGUOUS, False)}),
        (TP8, {"use_deep_gemm": True}, "0.32.0", {(Kernel.CONTIGUOUS, False), (Kernel.CONTIGUOUS, True)}),
        (TP8, {"moe_use_deep_gemm": False, "use_deep_gemm": True}, "0.33.0", set()),
        (
            Parallel(tp=8, attn_dp=8, moe_a2a_backend=A2A.deepep),
            {"deepep_mode": DeepEpDispatch.low_latency},
            "0.33.0",
            {(Kernel.MASKED, False)},
        ),
        (EP8, {}, "0.11.1", {(Kernel.CONTIGUOUS, False)}),
    ],
)
def test_the_experts_backend_and_layout_follow_flags_and_release(
    parallel: Parallel, flags: dict[str, Any], version: str, expected: set[tuple[Kernel, bool]]
) -> None:
    assert kernels(vllm(parallel=parallel, version=version, **flags)) == expected


def test_fp4_experts_are_another_backends() -> None:
    workload = vllm("deepseek_v4_flash", Parallel(tp=2), use_deep_gemm=True)
    assert any("FP4 experts" in entry.reason for entry in workload.not_deepgemm)
