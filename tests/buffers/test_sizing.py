"""The whole layout of a deployment: the decode set and every layer's operands in one arena."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.buffers.decode_set import PREFIX, AdapterKind
from pipeline.buffers.sizing import BufferPlan, plan_buffers
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import deepseek, layout, shipped, tiny, workload_of

MASKED = Parallel(tp=2, attn_dp=2, moe_a2a_backend=A2A.deepep)


def plan(parallel: Parallel, *, distinct: bool = False, **flags: Any) -> BufferPlan:
    flags = {"cuda_graph_max_bs": 8, **flags}
    workload = workload_of(tiny(), parallel, **flags)
    return plan_buffers(workload, parallel, AdapterKind.decode_graph, on_gpu=distinct)


def test_each_kind_of_layer_is_a_phase_and_the_decode_set_lives_through_all() -> None:
    buffers = plan(Parallel())
    phases = ["forward.dense", "forward.moe", "forward.dense_extend", "forward.moe_extend"]
    assert [layer.phase for layer in buffers.layers] == phases
    for region in buffers.layout.regions:
        phase = ".".join(region.spec.name.split(".")[:2])
        expected = set() if region.spec.name.startswith(PREFIX) else {phase}
        assert region.spec.phases == expected, region.spec.name


def test_the_two_kinds_of_layer_share_bytes() -> None:
    buffers = plan(Parallel())
    assert buffers.layout.arena_bytes < buffers.layout.sum_of_phase_bytes
    offsets = {region.offset for region in buffers.layout.regions if "forward.dense" in region.spec.phases}
    assert offsets & {region.offset for region in buffers.layout.regions if "forward.moe" in region.spec.phases}


@pytest.mark.parametrize("name", ["pp4", "dp8_ep8", "tp8", "tp16"])
def test_the_layout_of_a_shipped_deployment_needs_no_memory_to_compute(name: str) -> None:
    workload = workload_of(deepseek(), layout(name))
    buffers = plan_buffers(workload, layout(name), AdapterKind.auto, on_gpu=False)
    assert 0 < buffers.layout.arena_bytes < buffers.layout.sum_of_phase_bytes


@pytest.mark.parametrize(("model", "present"), [("qwen36_27b", True), ("qwen3_8b", False), ("kimi_k25", False)])
def test_three_part_positions_are_there_for_models_that_have_them(model: str, present: bool) -> None:
    tp2 = Parallel(tp=2)
    buffers = plan_buffers(workload_of(shipped(model), tp2), tp2, AdapterKind.auto, on_gpu=False)
    assert any(region.spec.name == "decode.mrope_positions" for region in buffers.layout.regions) is present


def test_stages_of_a_model_with_several_streams_hand_over_all_of_them() -> None:
    pp = Parallel(tp=4, pp=2)
    buffers = plan_buffers(workload_of(shipped("deepseek_v4_flash"), pp), pp, AdapterKind.auto, on_gpu=False)
    proxies = {r.spec.name: r.spec.shape[1] for r in buffers.layout.regions if "pp_proxy" in r.spec.name}
    assert proxies == {"decode.pp_proxy_tensors.hidden_states": 4 * 4096}
