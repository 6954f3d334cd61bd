from __future__ import annotations

from typing import Any

import pytest

from pipeline.buffers.decode_set import PREFIX, AdapterKind
from pipeline.buffers.sizing import BufferPlan, plan_buffers
from pipeline.workload.parallel import A2A, Parallel
from tests.workload.recipes import DEEP_GEMM, deepseek, layout, server, shipped, tiny, workload_of

MASKED = Parallel(tp=2, attn_dp=2, moe_a2a_backend=A2A.deepep)


def plan(parallel: Parallel, *, distinct: bool = False, **flags: Any) -> BufferPlan:
    flags = {"cuda_graph_max_bs": 8, **flags}
    workload = workload_of(tiny(), parallel, **flags)
    return plan_buffers(workload, parallel, server(**flags), AdapterKind.decode_graph, on_gpu=distinct)


def shape_of(buffers: BufferPlan, name: str) -> tuple[int, ...]:
    (region,) = [region for region in buffers.layout.regions if region.spec.name == name]
    return region.spec.shape


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


def test_a_plain_layout_gives_experts_contiguous_rows() -> None:
    # 8 tokens with 2 routes over 8 experts: one block of 128 rows for each expert, and none more is reached.
    buffers = plan(Parallel(), **DEEP_GEMM)
    assert buffers.layers[1].masked_rows is None
    assert shape_of(buffers, "forward.moe.mlp.experts.w13.x") == (8 * 128, 512)


def test_a_backend_gives_each_expert_a_block_of_what_may_be_dispatched() -> None:
    buffers = plan(MASKED)
    assert buffers.layers[1].masked_rows == 2 * 128
    assert shape_of(buffers, "forward.moe.mlp.experts.w13.x") == (4 * 256, 512)


def test_a_block_holds_the_whole_batch_when_that_is_more_than_may_be_dispatched() -> None:
    buffers = plan(MASKED, cuda_graph_max_bs=200, tokens_per_request=2)
    assert buffers.layers[1].masked_rows == 400


def test_operands_hold_every_token_of_the_batch() -> None:
    buffers = plan(Parallel(), tokens_per_request=2)
    assert shape_of(buffers, "forward.dense.hidden") == (16, 512)
    assert shape_of(buffers, "forward.dense.self_attn.q_b_proj.out") == (16, 4 * 192)


def test_experts_share_one_weight_unless_distinct_ones_are_asked() -> None:
    name = "forward.moe.mlp.experts.w13.w"
    assert shape_of(plan(Parallel()), name) == (1, 512, 512)
    assert shape_of(plan(Parallel(), distinct=True), name) == (8, 512, 512)


def test_a_scale_block_that_is_cut_has_its_own_row_of_scales() -> None:
    # N = 256 + 128 + 64 = 448 of the fused projection: three whole blocks and half of one.
    name = "forward.dense.self_attn.fused_qkv_a_proj_with_mqa"
    assert shape_of(plan(Parallel()), f"{name}.w") == (448, 512)
    assert shape_of(plan(Parallel()), f"{name}.w_scale") == (4, 4)


def test_kv_up_has_operands_in_prefill_only_because_decode_absorbs_it() -> None:
    names = {region.spec.name for region in plan(Parallel()).layout.regions if "kv_b_proj.w" in region.spec.name}
    assert {name.split(".self_attn")[0] for name in names} == {"forward.dense_extend", "forward.moe_extend"}


@pytest.mark.parametrize(("on_gpu", "chunk", "tokens"), [(True, 1000, 1024), (False, 1000, 128), (False, 16, 64)])
def test_prefill_is_one_chunk_in_whole_pages_and_less_on_a_cpu(on_gpu: bool, chunk: int, tokens: int) -> None:
    buffers = plan(Parallel(), distinct=on_gpu, chunked_prefill_size=chunk)
    assert {(layer.tokens, layer.requests) for layer in buffers.layers if layer.is_extend} == {(tokens, tokens // 64)}


def test_prefill_uses_the_contiguous_layout_behind_a_backend_too() -> None:
    assert [layer.masked_rows is not None for layer in plan(MASKED).layers] == [False, True, False, False]


@pytest.mark.parametrize("name", ["pp4", "dp8_ep8", "tp8", "tp16"])
def test_the_layout_of_a_shipped_deployment_needs_no_memory_to_compute(name: str) -> None:
    workload = workload_of(deepseek(), layout(name))
    buffers = plan_buffers(workload, layout(name), server(), AdapterKind.auto, on_gpu=False)
    assert 0 < buffers.layout.arena_bytes < buffers.layout.sum_of_phase_bytes


def test_both_kinds_of_layer_are_planned_whichever_stage_holds_them() -> None:
    workload = workload_of(deepseek(), layout("pp4"))
    buffers = plan_buffers(workload, layout("pp4"), server(), AdapterKind.auto, on_gpu=False)
    assert [layer.has_experts for layer in buffers.layers] == [False, True, False, True]


@pytest.mark.parametrize(("model", "present"), [("qwen36_27b", True), ("qwen3_8b", False), ("kimi_k25", False)])
def test_three_part_positions_are_there_for_models_that_have_them(model: str, present: bool) -> None:
    tp2 = Parallel(tp=2)
    buffers = plan_buffers(workload_of(shipped(model), tp2), tp2, server(), AdapterKind.auto, on_gpu=False)
    assert any(region.spec.name == "decode.mrope_positions" for region in buffers.layout.regions) is present


def test_a_model_with_several_kinds_of_attention_has_a_phase_for_each() -> None:
    tp4 = Parallel(tp=4)
    for model, kinds in (("qwen3_next_80b", {"linear", "full"}), ("deepseek_v4_flash", {"windowed", "indexed"})):
        buffers = plan_buffers(workload_of(shipped(model), tp4), tp4, server(), AdapterKind.auto, on_gpu=False)
        decode = {layer.phase for layer in buffers.layers if not layer.is_extend}
        assert decode == {f"forward.{kind}_moe" for kind in kinds}


def test_stages_of_a_model_with_several_streams_hand_over_all_of_them() -> None:
    pp = Parallel(tp=4, pp=2)
    buffers = plan_buffers(workload_of(shipped("deepseek_v4_flash"), pp), pp, server(), AdapterKind.auto, on_gpu=False)
    proxies = {r.spec.name: r.spec.shape[1] for r in buffers.layout.regions if "pp_proxy" in r.spec.name}
    assert proxies == {"decode.pp_proxy_tensors.hidden_states": 4 * 4096}
