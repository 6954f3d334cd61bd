from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.servers.sglang import shared_experts
from pipeline.servers.sglang.flags import DeepEpMode, DenseBackend, FusedShared, MoeRunner, PdRole
from pipeline.servers.sglang.rules import SglangRules
from pipeline.servers.shared.problems import Kernel
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import DEEP_GEMM, deepseek, kernels_of, shapes_of, workload_of

TP8 = Parallel(tp=8)
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


def behind(backend: A2A) -> Parallel:
    """Eight ranks behind a backend; pplx is for attention data parallelism only."""
    return Parallel(tp=8, attn_dp=2 if backend is A2A.pplx else 1, moe_a2a_backend=backend)


def expert_reasons(parallel: Parallel, **flags: Any) -> list[str]:
    found = workload_of(deepseek(), parallel, **flags).not_deepgemm
    return [entry.reason for entry in found if entry.layer.startswith("mlp.experts.")]


# Which runner takes the experts, for every pair of runner and backend.


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


FUSION_CLAUSES: list[tuple[dict[str, Any], Parallel, dict[str, Any], str]] = [
    ({"n_shared_experts": 0}, TP8, {}, "no shared experts"),
    ({"n_shared_experts": 2}, TP8, {}, "2 shared experts"),
    ({"n_routed_experts": 384}, TP8, {}, "384 experts"),
    ({"architectures": ["DeepseekV2ForCausalLM"]}, TP8, {}, "DeepseekV2ForCausalLM"),
    ({}, Parallel(tp=8, ep=8), {}, "expert parallel size 8"),
    ({}, behind(A2A.nixl), {}, "expert parallel size 8"),
    ({}, TP8, {"shared_experts_fusion": FusedShared.off}, "server.shared_experts_fusion=off"),
    ({}, TP8, {"enable_two_batch_overlap": True}, "batch overlap"),
    ({}, TP8, {"moe_runner_backend": MoeRunner.flashinfer_trtllm}, "flashinfer_trtllm"),
    *(({}, behind(a2a), {}, f"behind {a2a.name}") for a2a in shared_experts.DEEPEP_CLASS),
    *(({}, behind(a2a), {}, f"behind {a2a.name}") for a2a in shared_experts.BACKENDS_WITHOUT_FUSION),
]


@pytest.mark.parametrize(("changes", "parallel", "flags", "reason"), FUSION_CLAUSES)
def test_shared_experts_stay_apart_when_one_clause_fails(
    changes: dict[str, Any], parallel: Parallel, flags: dict[str, Any], reason: str
) -> None:
    workload = workload_of(deepseek(**changes), parallel, **flags)
    rules = workload.rules
    experts = workload.facts.experts
    assert isinstance(rules, SglangRules)
    assert experts is not None
    why = shared_experts.not_fused(rules)
    assert why is not None
    assert reason in why
    groups = {linear.groups for stage in workload.pipeline_ranks for linear in stage.linears} - {1}
    assert groups == {experts.num // parallel.effective_ep}


def test_the_trtllm_runner_of_a_blackwell_server_keeps_shared_experts_apart() -> None:
    assert shapes_of(workload_of(deepseek(), TP8, gpu="b200"))["mlp.shared_experts.gate_up_proj"] == "512x7168"


@pytest.mark.parametrize("parallel", [Parallel(moe_a2a_backend=A2A.deepep), behind(A2A.deepep), Parallel(tp=8, ep=8)])
def test_enforced_fusion_skips_every_later_clause(parallel: Parallel) -> None:
    """models/deepseek_v2.py l.3334: enforcement is asked before architecture, ep and backend."""
    shapes = shapes_of(workload_of(deepseek(), parallel, shared_experts_fusion=FusedShared.enforced))
    assert shapes["mlp.experts.w13"] == f"4096x7168 ({256 // parallel.effective_ep + 1})"
    assert not any("shared" in name for name in shapes)


def test_redundant_experts_are_spread_over_the_ranks() -> None:
    shapes = shapes_of(workload_of(deepseek(), behind(A2A.deepep), ep_num_redundant_experts=32))
    assert shapes["mlp.experts.w13"] == "4096x7168 (36)"


def test_shared_experts_are_whole_behind_a_backend_and_split_without() -> None:
    apart: dict[str, Any] = {"shared_experts_fusion": FusedShared.off}
    name = "mlp.shared_experts.gate_up_proj"
    assert shapes_of(workload_of(deepseek(), behind(A2A.deepep), **apart))[name] == "4096x7168"
    assert shapes_of(workload_of(deepseek(), TP8, **apart))[name] == "512x7168"


@pytest.mark.parametrize(
    ("role", "kernel"), [(PdRole.prefill, Kernel.CONTIGUOUS), (PdRole.decode, Kernel.MASKED)], ids=lambda x: x.name
)
def test_a_server_with_one_half_of_the_work_dispatches_one_way(role: PdRole, kernel: Kernel) -> None:
    workload = workload_of(deepseek(), behind(A2A.deepep), disaggregation_mode=role)
    assert kernels_of(workload) - {Kernel.DENSE} == {kernel}


# Further kernels of the same linears: fewer SMs.


def options_of(parallel: Parallel, **flags: Any) -> dict[str, set[int | str]]:
    found = workload_of(deepseek(), parallel, **flags).problems
    return {name: {p.options[0][1] for p in found if p.options and name in p.linears} for name in NAMES}


NAMES = ("self_attn.o_proj", "mlp.shared_experts.gate_up_proj")


def test_two_batch_overlap_leaves_sms_to_the_dispatcher() -> None:
    found = options_of(behind(A2A.deepep), enable_two_batch_overlap=True)
    assert found == dict.fromkeys(NAMES, {112})


def test_single_batch_overlap_leaves_sms_to_the_combine() -> None:
    found = options_of(behind(A2A.deepep), enable_single_batch_overlap=True)
    assert found == {NAMES[0]: set(), NAMES[1]: {129}}


# Which linears DeepGEMM refuses.


def reason_of(n: int, k: int, *, block: tuple[int, int] | None = (128, 128), gpu: str = "h200", **flags: Any) -> str:
    found = {"quant_method": "fp8", "weight_block_size": list(block)} if block else None
    workload = workload_of(deepseek(quantization_config=found), Parallel(), gpu=gpu, **flags)
    return workload.rules.reason(replace(workload.pipeline_ranks[0].linears[0], parts=(n,), k=k)) or ""


@pytest.mark.parametrize(
    ("block", "gpu", "flags", "on_deepgemm"),
    [
        ((128, 128), "h200", {}, True),
        (None, "h200", {}, False),
        ((64, 64), "h200", {}, False),
        ((32, 32), "h200", {}, True),
        ((32, 32), "b200", {}, False),
        ((32, 32), "b200", {"fp8_gemm_backend": DenseBackend.deep_gemm}, True),
        ((128, 128), "h200", {"fp8_gemm_backend": DenseBackend.triton}, False),
        ((128, 128), "h200", {"fp8_gemm_backend": DenseBackend.flashinfer_deepgemm}, True),
    ],
)
def test_scale_blocks_and_the_backend_decide_whether_a_linear_is_deepgemms(
    block: tuple[int, int] | None, gpu: str, flags: dict[str, Any], on_deepgemm: bool
) -> None:
    assert (reason_of(2112, 7168, block=block, gpu=gpu, **flags) == "") is on_deepgemm


@pytest.mark.parametrize(
    ("n", "k", "reason"), [(2112, 7168, ""), (64, 128, ""), (2080, 7168, "N 2080"), (2112, 7168 + 64, "K 7232")]
)
def test_a_shard_is_for_deepgemm_by_the_multiples_of_its_sides(n: int, k: int, reason: str) -> None:
    assert reason in reason_of(n, k)
    assert bool(reason) is bool(reason_of(n, k))


def test_a_replicated_shard_that_deepgemm_refuses_is_listed_with_the_size() -> None:
    workload = workload_of(deepseek(qk_rope_head_dim=32), Parallel())
    (entry,) = [entry for entry in workload.not_deepgemm if "fused_qkv_a" in entry.layer]
    assert "N 2080 is not a multiple of 64" in entry.reason


@pytest.mark.parametrize(
    ("dtype", "is_served"), [("bfloat16", True), (None, True), ("float16", False), ("float32", False)]
)
def test_dense_products_of_a_half_precision_checkpoint_stay_with_triton(dtype: str | None, is_served: bool) -> None:
    model = deepseek()
    model.config = {**model.config, "dtype": dtype}
    workload = workload_of(model, TP8, **DEEP_GEMM)
    assert (Kernel.DENSE in kernels_of(workload)) == is_served
    assert kernels_of(workload) >= GROUPED, "the experts are cast before they are dispatched"
