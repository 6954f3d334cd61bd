"""Whether shared experts become extra routed experts, each clause of the rule, and over how many ranks they go."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.servers.sglang import shared_experts
from pipeline.servers.sglang.flags import FusedShared, MoeRunner
from pipeline.servers.sglang.rules import SglangRules
from pipeline.servers.shared.problems import Kernel
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import DEEP_GEMM, deepseek, shapes_of, shipped, workload_of
from tests.servers.sglang.layouts import TP8, behind


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
    not_fused = shared_experts.not_fused(rules)
    assert not_fused is not None
    assert reason in not_fused
    groups = {linear.groups for place in workload.pipeline_ranks for linear in place.linears} - {1}
    assert groups == {experts.num // parallel.effective_ep}


def test_the_trtllm_runner_of_a_blackwell_server_keeps_shared_experts_apart() -> None:
    assert shapes_of(workload_of(deepseek(), TP8, gpu="b200"))["mlp.shared_experts.gate_up_proj"] == "512x7168"


@pytest.mark.parametrize("parallel", [Parallel(moe_a2a_backend=A2A.deepep), behind(A2A.deepep), Parallel(tp=8, ep=8)])
def test_enforced_fusion_skips_every_later_clause(parallel: Parallel) -> None:
    """models/deepseek_v2.py l.3334: enforcement is asked before architecture, ep and backend."""
    shapes = shapes_of(workload_of(deepseek(), parallel, shared_experts_fusion=FusedShared.enforced))
    assert shapes["mlp.experts.w13"] == f"4096x7168 ({256 // parallel.effective_ep + 1})"
    assert not any("shared" in name for name in shapes)


def test_shared_experts_are_whole_behind_a_backend_and_split_without() -> None:
    apart: dict[str, Any] = {"shared_experts_fusion": FusedShared.off}
    name = "mlp.shared_experts.gate_up_proj"
    assert shapes_of(workload_of(deepseek(), behind(A2A.deepep), **apart))[name] == "4096x7168"
    assert shapes_of(workload_of(deepseek(), TP8, **apart))[name] == "512x7168"


def test_a_draft_of_v32_fuses_its_shared_expert_where_the_target_does_not() -> None:
    workload = workload_of(shipped("deepseek_v32"), TP8, mtp=True, **DEEP_GEMM)
    assert {p.groups for p in workload.problems if p.kernel is Kernel.MASKED} == {256, 257}
