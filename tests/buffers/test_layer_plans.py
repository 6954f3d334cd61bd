"""Which layers a dummy forward runs, and what each of them launches."""

from __future__ import annotations

import pytest

from pipeline.buffers.decode_set import AdapterKind
from pipeline.buffers.layer_plans import LayerPlan
from pipeline.buffers.sizing import plan_buffers
from pipeline.workload.linears import Role
from pipeline.workload.parallel import Parallel
from tests.buffers.test_sizing import MASKED, plan
from tests.servers.recipes import DEEP_GEMM, deepseek, layout, shipped, workload_of


def test_a_block_holds_the_whole_batch_when_that_is_more_than_may_be_dispatched() -> None:
    buffers = plan(MASKED, cuda_graph_max_bs=200, tokens_per_request=2)
    assert buffers.layers[1].masked_rows == 400


@pytest.mark.parametrize(("on_gpu", "chunk", "tokens"), [(True, 1000, 1024), (False, 1000, 128), (False, 16, 64)])
def test_prefill_is_one_chunk_in_whole_pages_and_less_on_a_cpu(on_gpu: bool, chunk: int, tokens: int) -> None:
    buffers = plan(Parallel(), distinct=on_gpu, chunked_prefill_size=chunk)
    assert {(layer.tokens, layer.requests) for layer in buffers.layers if layer.is_extend} == {(tokens, tokens // 64)}


def test_prefill_uses_the_contiguous_layout_behind_a_backend_too() -> None:
    assert [layer.masked_rows is not None for layer in plan(MASKED).layers] == [False, True, False, False]


def test_both_kinds_of_layer_are_planned_whichever_stage_holds_them() -> None:
    workload = workload_of(deepseek(), layout("pp4"))
    buffers = plan_buffers(workload, layout("pp4"), AdapterKind.auto, on_gpu=False)
    assert [layer.has_experts for layer in buffers.layers] == [False, True, False, True]


def test_a_model_with_several_kinds_of_attention_has_a_phase_for_each() -> None:
    tp4 = Parallel(tp=4)
    for model, kinds in (("qwen3_next_80b", {"linear", "full"}), ("deepseek_v4_flash", {"windowed", "indexed"})):
        buffers = plan_buffers(workload_of(shipped(model), tp4), tp4, AdapterKind.auto, on_gpu=False)
        decode = {layer.phase for layer in buffers.layers if not layer.is_extend}
        assert decode == {f"forward.{kind}_moe" for kind in kinds}


# What a layer launches is told apart by the roles and sources of its linears; the checkpoint's names say the same.

DEPLOYMENTS = [
    ("deepseek", "dp8_ep8"),
    ("deepseek_v4_flash", "tp8"),
    ("glm46", "tp8"),
    ("mimo_v2_flash", "tp4"),
    ("qwen3_32b", "tp4"),
    ("qwen3_next_80b", "tp4"),
]


def layers_of(model: str, name: str) -> tuple[LayerPlan, ...]:
    workload = workload_of(shipped(model), layout(name))
    return plan_buffers(workload, layout(name), AdapterKind.auto, on_gpu=False).layers


@pytest.mark.parametrize(("model", "name"), DEPLOYMENTS)
def test_a_gate_and_up_projection_is_read_by_the_down_projection_beside_it(model: str, name: str) -> None:
    for layer in layers_of(model, name):
        launched = {linear.name for linear in layer.linears}
        assert [linear.name for linear in layer.gate_ups] == [
            linear.name for linear in layer.linears if linear.name.endswith(".gate_up_proj")
        ]
        for gate_up in layer.gate_ups:
            down = layer.reader_of(gate_up)
            name_of_down = gate_up.name.replace("gate_up_proj", "down_proj")
            assert (down.name if down else None) == (name_of_down if name_of_down in launched else None)


@pytest.mark.parametrize(("model", "name"), DEPLOYMENTS)
def test_every_linear_of_a_layer_is_launched_by_one_of_its_parts(model: str, name: str) -> None:
    for layer in layers_of(model, name):
        feed_forward = [linear for gate_up in layer.gate_ups for linear in (gate_up, layer.reader_of(gate_up))]
        parts = [*layer.attention, *feed_forward, *(layer.experts or ())]
        assert sorted(linear.name for linear in parts if linear) == sorted(linear.name for linear in layer.linears)


def test_experts_are_the_two_grouped_products_in_the_order_in_which_they_run() -> None:
    dense, moe = plan(Parallel(), **DEEP_GEMM).layers[:2]
    assert dense.experts is None
    assert moe.experts is not None
    w13, w2 = moe.experts
    assert (w13.name, w2.name) == ("mlp.experts.w13", "mlp.experts.w2")
    assert {w13.role, w2.role} == {Role.EXPERTS}


def test_the_query_is_the_output_of_the_linear_that_the_geometry_names() -> None:
    dense, *_ = plan(Parallel()).layers
    assert dense.query is not None
    assert dense.query.name == dense.geometry.query == "self_attn.q_b_proj"


def test_a_linear_that_reads_some_columns_of_an_earlier_output_reads_a_part() -> None:
    extend = plan(Parallel()).layers[2]
    parts = {linear.name.removeprefix("self_attn."): extend.reads_a_part(linear) for linear in extend.attention}
    # o_proj reads all of what was attended.
    assert parts == {"fused_qkv_a_proj_with_mqa": False, "q_b_proj": True, "kv_b_proj": True, "o_proj": False}


def test_a_layer_with_fewer_linears_on_deepgemm_is_a_kind_of_its_own() -> None:
    quantization = deepseek().config["quantization_config"]
    plain = {"modules_to_not_convert": [f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up", "down")]}
    workload = workload_of(deepseek(quantization_config=quantization | plain), Parallel(tp=8))
    buffers = plan_buffers(workload, Parallel(tp=8), AdapterKind.auto, on_gpu=False)
    dense = {layer.phase: {linear.name for linear in layer.linears} for layer in buffers.layers if not layer.is_extend}
    assert set(dense) == {"forward.dense", "forward.dense_2", "forward.moe"}
    assert dense["forward.dense_2"] - dense["forward.dense"] == {"mlp.gate_up_proj", "mlp.down_proj"}
