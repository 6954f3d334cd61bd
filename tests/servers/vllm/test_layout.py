"""The tp of attention, data-parallel engines, experts over all ranks, and the split over the pipeline."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.servers.derive import derive
from pipeline.servers.vllm.flags import MoeBackend, VllmFlags
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import deepseek, layout, shapes_of, target
from tests.servers.vllm.derived import EP8, problem_of, vllm


def test_attention_data_parallel_groups_are_engines_of_their_own() -> None:
    assert problem_of(vllm(parallel=EP8), "self_attn.o_proj").k == 16384
    assert problem_of(vllm(parallel=EP8), "mlp.gate_up_proj").n == 36864, "dense layers follow the engine's own tp"


def test_shared_experts_are_whole_under_sequence_parallel_experts_only() -> None:
    both = Parallel(tp=8, attn_dp=4, ep=8)
    assert problem_of(vllm(parallel=both), "mlp.shared_experts.down_proj").k == 2048
    assert problem_of(vllm(), "mlp.shared_experts.down_proj").k == 256
    over_pplx = Parallel(tp=8, attn_dp=4, moe_a2a_backend=A2A.pplx)
    assert problem_of(vllm(parallel=over_pplx), "mlp.shared_experts.down_proj").k == 1024


@pytest.mark.parametrize(("version", "width"), [("0.28.0", 2), ("0.29.0", 1)])
def test_indexed_models_hold_dense_layers_whole_from_0_29(version: str, width: int) -> None:
    both = Parallel(tp=8, attn_dp=4, ep=8)
    assert problem_of(vllm("deepseek_v32", both, version), "mlp.down_proj").k == 18432 // width


@pytest.mark.parametrize(
    ("num_layers", "pp", "counts"), [(61, 4, [15, 15, 16, 15]), (61, 2, [31, 30]), (94, 4, [23, 24, 24, 23])]
)
def test_the_last_place_of_the_pipeline_gets_no_extra_layer(num_layers: int, pp: int, counts: list[int]) -> None:
    model = deepseek(num_hidden_layers=num_layers)
    workload = derive(model, Parallel(pp=pp), VllmFlags(version="0.33.0"), target())
    assert [len(place.layers) for place in workload.pipeline_ranks] == counts


@pytest.mark.parametrize(("redundant", "groups"), [(0, 32), (32, 36)])
def test_redundant_experts_are_spread_over_the_ranks(redundant: int, groups: int) -> None:
    """(256 + 32) / 8; the number of groups is compiled into the grouped kernels."""
    flags: dict[str, Any] = {"moe_runner_backend": MoeBackend.deep_gemm, "ep_num_redundant_experts": redundant}
    workload = vllm(parallel=layout("dp8_ep8"), **flags)
    assert {problem.groups for problem in workload.problems} == {1, groups}
    assert shapes_of(workload)["mlp.experts.w13"] == f"4096x7168 ({groups})"


def test_redundant_experts_mean_nothing_where_no_rank_holds_a_part_of_them() -> None:
    """vLLM copies experts for expert parallelism only (config/parallel.py)."""
    assert shapes_of(vllm(ep_num_redundant_experts=32))["mlp.experts.w13"].endswith("(256)")
