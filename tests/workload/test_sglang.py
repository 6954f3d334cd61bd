from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.workload.parallel import A2A, Parallel
from pipeline.workload.problems import Kernel
from pipeline.workload.servers import DeepEpMode, FusedShared, MoeRunner, sglang
from tests.workload.recipes import DEEP_GEMM, deepseek, kernels_of, server, shapes_of, workload_of

TP8 = Parallel(tp=8)
GROUPED = {Kernel.MASKED, Kernel.CONTIGUOUS}
ELSEWHERE = [MoeRunner.triton, MoeRunner.cutlass, MoeRunner.marlin]
ELSEWHERE += [MoeRunner.flashinfer_cutlass, MoeRunner.flashinfer_trtllm, MoeRunner.flashinfer_mxfp4]
ON_DEEPGEMM = (A2A.deepep, A2A.mooncake, A2A.nixl)


def behind(backend: A2A) -> Parallel:
    return Parallel(tp=8, moe_a2a_backend=backend)


def expert_reasons(parallel: Parallel, **flags: Any) -> list[str]:
    found = workload_of(deepseek(), parallel, **flags).not_deepgemm
    return [entry.reason for entry in found if entry.layer.startswith("mlp.experts.")]


# Which runner takes the experts, for every pair of runner and backend.


@pytest.mark.parametrize("backend", A2A, ids=lambda backend: backend.name)
def test_the_deep_gemm_runner_takes_the_experts_behind_any_backend(backend: A2A) -> None:
    workload = workload_of(deepseek(), behind(backend), **DEEP_GEMM)
    assert kernels_of(workload) >= GROUPED


@pytest.mark.parametrize("backend", ON_DEEPGEMM, ids=lambda backend: backend.name)
def test_auto_takes_deepgemm_behind_these_backends(backend: A2A) -> None:
    workload = workload_of(deepseek(), behind(backend))
    assert kernels_of(workload) >= GROUPED


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


# kv_b_proj.


def test_kv_up_is_a_gemm_where_eager_prefill_does_not_absorb_it() -> None:
    workload = workload_of(deepseek(), TP8)
    (kv_up,) = [problem for problem in workload.problems if "self_attn.kv_b_proj" in problem.linears]
    assert (kv_up.n, kv_up.k) == (4096, 512)
    assert "MHA" in kv_up.rules[0]


@pytest.mark.parametrize(
    ("parallel", "flags", "reason"),
    [
        (Parallel(tp=8, attn_cp=2), {}, "context parallel"),
        (TP8, {"enable_deterministic_inference": True}, "deterministic"),
    ],
    ids=["context parallel", "deterministic"],
)
def test_kv_up_is_absorbed_by_prefill_under_these(parallel: Parallel, flags: dict[str, Any], reason: str) -> None:
    workload = workload_of(deepseek(), parallel, **flags)
    assert not any("self_attn.kv_b_proj" in problem.linears for problem in workload.problems)
    (entry,) = [entry for entry in workload.not_deepgemm if entry.layer.startswith("self_attn.kv_b_proj")]
    assert reason in entry.reason


# Shared-expert fusion, each clause of the rule.


def test_shared_experts_become_one_more_group() -> None:
    shapes = shapes_of(workload_of(deepseek(), TP8))
    assert shapes["mlp.experts.w13"].endswith("(257)")
    assert not any("shared" in name for name in shapes)


@pytest.mark.parametrize(
    ("changes", "parallel", "flags", "reason"),
    [
        ({"n_shared_experts": 0}, TP8, {}, "no shared experts"),
        ({"n_shared_experts": 2}, TP8, {}, "2 shared experts"),
        ({"n_routed_experts": 384}, TP8, {}, "384 experts"),
        ({"architectures": ["DeepseekV2ForCausalLM"]}, TP8, {}, "DeepseekV2ForCausalLM"),
        ({}, Parallel(tp=8, ep=8), {}, "expert parallel size 8"),
        ({}, TP8, {"shared_experts_fusion": FusedShared.off}, "server.shared_experts_fusion=off"),
        ({}, behind(A2A.deepep), {"shared_experts_fusion": FusedShared.enforced}, "expert parallel size 8"),
        *(({}, Parallel(moe_a2a_backend=a2a), {}, f"behind {a2a.name}") for a2a in sglang.A2A_WITHOUT_FUSION),
    ],
)
def test_shared_experts_stay_apart_when_one_clause_fails(
    changes: dict[str, Any], parallel: Parallel, flags: dict[str, Any], reason: str
) -> None:
    workload = workload_of(deepseek(**changes), parallel, **flags)
    why = sglang.shared_experts_not_fused(workload.facts, server(**flags), parallel)
    assert why is not None
    assert reason in why
    groups = {linear.groups for stage in workload.stages for linear in stage.linears} - {1}
    assert groups == {workload.facts.num_experts // parallel.effective_ep}


def test_fusion_behind_deepep_can_be_enforced_where_experts_are_not_spread() -> None:
    alone = Parallel(moe_a2a_backend=A2A.deepep)
    shapes = shapes_of(workload_of(deepseek(), alone, shared_experts_fusion=FusedShared.enforced))
    assert shapes["mlp.experts.w13"] == "4096x7168 (257)"
    assert not any("shared" in name for name in shapes)


def test_shared_experts_are_whole_behind_a_backend_and_split_without() -> None:
    apart = {"shared_experts_fusion": FusedShared.off}
    name = "mlp.shared_experts.gate_up_proj"
    assert shapes_of(workload_of(deepseek(), behind(A2A.deepep), **apart))[name] == "4096x7168"
    assert shapes_of(workload_of(deepseek(), TP8, **apart))[name] == "512x7168"


# Which linears DeepGEMM refuses.


@pytest.mark.parametrize(("block", "on_deepgemm"), [((128, 128), True), ((32, 32), False), (None, False)])
def test_only_scale_blocks_of_128_reach_deepgemm(block: tuple[int, int] | None, on_deepgemm: bool) -> None:
    linear = workload_of(deepseek(), TP8).stages[0].linears[0]
    assert (sglang.dense_not_on_deepgemm(linear, block) is None) is on_deepgemm


@pytest.mark.parametrize(
    ("n", "k", "reason"),
    [(2112, 7168, None), (64, 128, None), (2080, 7168, "N 2080"), (2112, 7168 + 64, "K 7232")],
)
def test_a_shard_is_for_deepgemm_by_the_multiples_of_its_sides(n: int, k: int, reason: str | None) -> None:
    linear = replace(workload_of(deepseek(), TP8).stages[0].linears[0], parts=(n,), k=k)
    why = sglang.dense_not_on_deepgemm(linear, (128, 128))
    assert why is None if reason is None else (why is not None and reason in why)


def test_a_replicated_shard_that_deepgemm_refuses_is_listed_with_the_size() -> None:
    workload = workload_of(deepseek(qk_rope_head_dim=32), Parallel())
    (entry,) = [entry for entry in workload.not_deepgemm if "fused_qkv_a" in entry.layer]
    assert "N 2080 is not a multiple of 64" in entry.reason
