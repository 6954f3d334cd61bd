"""Which runner takes the experts, for every pair of runner and backend, and in which layout their rows lie."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.servers.sglang.flags import DeepEpMode, MoeRunner, PdRole
from pipeline.servers.shared.problems import Kernel
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import DEEP_GEMM, deepseek, kernels_of, shipped, workload_of
from tests.servers.sglang.layouts import EP8, TP8, behind

GROUPED = {Kernel.MASKED, Kernel.CONTIGUOUS}
ELSEWHERE = [
    MoeRunner.triton,
    MoeRunner.cutlass,
    MoeRunner.marlin,
    MoeRunner.flashinfer_cutlass,
    MoeRunner.flashinfer_trtllm,
    MoeRunner.flashinfer_mxfp4,
]
ON_DEEPGEMM = (A2A.deepep, A2A.mooncake, A2A.nixl, A2A.deepep_v2, A2A.pplx)


def expert_reasons(parallel: Parallel, **flags: Any) -> list[str]:
    entries = workload_of(deepseek(), parallel, **flags).not_deepgemm
    return [entry.reason for entry in entries if entry.layer.startswith("mlp.experts.")]


def grouped_behind(backend: A2A) -> set[Kernel]:
    """pplx dispatches one way only."""
    return {Kernel.MASKED} if backend is A2A.pplx else GROUPED


@pytest.mark.parametrize("backend", A2A, ids=lambda backend: backend.name)
def test_the_deep_gemm_runner_takes_the_experts_behind_any_backend(backend: A2A) -> None:
    workload = workload_of(deepseek(), behind(backend), **DEEP_GEMM)
    assert kernels_of(workload) - {Kernel.DENSE} == grouped_behind(backend)


@pytest.mark.parametrize("backend", ON_DEEPGEMM, ids=lambda backend: backend.name)
def test_auto_takes_deepgemm_behind_these_backends(backend: A2A) -> None:
    workload = workload_of(deepseek(), behind(backend))
    assert kernels_of(workload) - {Kernel.DENSE} == grouped_behind(backend)


@pytest.mark.parametrize("backend", [b for b in A2A if b not in ON_DEEPGEMM], ids=lambda backend: backend.name)
def test_auto_leaves_the_experts_to_others_behind_the_rest(backend: A2A) -> None:
    workload = workload_of(deepseek(), behind(backend))
    assert kernels_of(workload) == {Kernel.DENSE}
    assert all(f"moe_a2a_backend={backend.name}" in reason for reason in expert_reasons(behind(backend)))


@pytest.mark.parametrize(("gpu", "served_by"), [("h200", "Triton"), ("b200", "trtllm")])
def test_the_reason_names_what_serves_the_experts_instead(gpu: str, served_by: str) -> None:
    reasons = expert_reasons(TP8, gpu=gpu)
    assert len(reasons) == 2
    assert all(served_by in reason and "server.moe_runner_backend=deep_gemm" in reason for reason in reasons)


@pytest.mark.parametrize("backend", [A2A.none, A2A.deepep], ids=lambda backend: backend.name)
@pytest.mark.parametrize("runner", ELSEWHERE, ids=lambda runner: runner.name)
def test_any_other_runner_keeps_the_experts_from_deepgemm(runner: MoeRunner, backend: A2A) -> None:
    workload = workload_of(deepseek(), behind(backend), moe_runner_backend=runner)
    assert kernels_of(workload) == {Kernel.DENSE}
    assert all(runner.name in reason for reason in expert_reasons(behind(backend), moe_runner_backend=runner))


@pytest.mark.parametrize("parallel", [TP8, Parallel(tp=8, ep=8)], ids=["tp8", "tp8 ep8"])
def test_a_plain_hopper_server_needs_no_grouped_kernel(parallel: Parallel) -> None:
    assert kernels_of(workload_of(deepseek(), parallel)) == {Kernel.DENSE}


@pytest.mark.parametrize(
    ("mode", "kernels"),
    [
        (DeepEpMode.auto, GROUPED),
        (DeepEpMode.normal, {Kernel.CONTIGUOUS}),
        (DeepEpMode.low_latency, {Kernel.MASKED}),
    ],
    ids=["auto", "normal", "low_latency"],
)
def test_prefill_dispatch_is_contiguous_and_decode_dispatch_masked(mode: DeepEpMode, kernels: set[Kernel]) -> None:
    workload = workload_of(deepseek(), behind(A2A.deepep), deepep_mode=mode)
    assert kernels_of(workload) - {Kernel.DENSE} == kernels


def test_deepep_mode_means_nothing_without_a_backend() -> None:
    workload = workload_of(deepseek(), TP8, deepep_mode=DeepEpMode.normal, **DEEP_GEMM)
    assert kernels_of(workload) >= GROUPED


@pytest.mark.parametrize(
    ("role", "kernel"), [(PdRole.prefill, Kernel.CONTIGUOUS), (PdRole.decode, Kernel.MASKED)], ids=lambda x: x.name
)
def test_a_server_with_one_half_of_the_work_dispatches_one_way(role: PdRole, kernel: Kernel) -> None:
    workload = workload_of(deepseek(), behind(A2A.deepep), disaggregation_mode=role)
    assert kernels_of(workload) - {Kernel.DENSE} == {kernel}


@pytest.mark.parametrize(("parallel", "kernels"), [(TP8, 1), (EP8, 2)])
def test_a_clamped_activation_keeps_narrow_experts_from_the_masked_layout(parallel: Parallel, kernels: int) -> None:
    """Seen on the virtual GPU: 256 columns of 256 experts on one rank are compact only."""
    workload = workload_of(shipped("deepseek_v4_flash", expert_dtype="fp8"), parallel, **DEEP_GEMM)
    assert len({p.kernel for p in workload.problems if p.kernel in (Kernel.MASKED, Kernel.CONTIGUOUS)}) == kernels
