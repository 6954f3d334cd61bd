"""The operands of a dummy layer: their shapes, and what each is filled with."""

from __future__ import annotations

import pytest

from pipeline.buffers.layout import BufferSpec, Content
from pipeline.buffers.names import LayerBuffer, LinearBuffer
from pipeline.buffers.sizing import BufferPlan
from pipeline.workload.parallel import Parallel
from tests.buffers.test_sizing import MASKED, plan
from tests.servers.recipes import DEEP_GEMM


def shape_of(buffers: BufferPlan, name: str) -> tuple[int, ...]:
    (region,) = [region for region in buffers.layout.regions if region.spec.name == name]
    return region.spec.shape


def test_a_plain_layout_gives_experts_contiguous_rows() -> None:
    # 8 tokens with 2 routes over 8 experts: one block of 128 rows for each expert, and none more is reached.
    buffers = plan(Parallel(), **DEEP_GEMM)
    assert buffers.layers[1].masked_rows is None
    assert shape_of(buffers, "forward.moe.mlp.experts.w13.x") == (8 * 128, 512)


def test_a_backend_gives_each_expert_a_block_of_what_may_be_dispatched() -> None:
    buffers = plan(MASKED)
    assert buffers.layers[1].masked_rows == 2 * 128
    assert shape_of(buffers, "forward.moe.mlp.experts.w13.x") == (4 * 256, 512)


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


# Contents. What no kernel writes before it is read is filled, and never with zeros: a kernel may take a short cut.

FILLED_LAYER_BUFFERS: dict[LayerBuffer, int | Content] = {
    LayerBuffer.HIDDEN: Content.NORMAL,
    LayerBuffer.NORM_WEIGHT: 1,
    LayerBuffer.K_CACHE: Content.NORMAL,
    LayerBuffer.V_CACHE: Content.NORMAL,
    LayerBuffer.QUERY: Content.NORMAL,
    LayerBuffer.SEEN: Content.POSITIONS,
    LayerBuffer.GATE: Content.NORMAL,
}
FILLED_LINEAR_BUFFERS = {LinearBuffer.W: Content.FP8_BELOW_TWO, LinearBuffer.W_SCALE: Content.WEIGHT_SCALES}


def operands(buffers: BufferPlan, phase: str) -> dict[str, BufferSpec]:
    return {region.spec.name: region.spec for region in buffers.layout.regions if phase in region.spec.phases}


def test_every_operand_has_a_name_made_of_its_phase_its_linear_and_a_known_word() -> None:
    buffers = plan(Parallel(), **DEEP_GEMM)
    for layer in buffers.layers:
        of_layer = {layer.names.layer(buffer) for buffer in LayerBuffer}
        of_linears = {layer.names.linear(linear.name, buffer) for linear in layer.linears for buffer in LinearBuffer}
        assert not of_layer & of_linears
        assert operands(buffers, layer.phase).keys() <= of_layer | of_linears


def test_what_no_kernel_writes_is_filled_and_nothing_else_is() -> None:
    buffers = plan(Parallel(), **DEEP_GEMM)
    for layer in buffers.layers:
        expected: dict[str, int | Content] = {
            layer.names.layer(buffer): content for buffer, content in FILLED_LAYER_BUFFERS.items()
        }
        for linear in layer.linears:
            for buffer, content in FILLED_LINEAR_BUFFERS.items():
                expected[layer.names.linear(linear.name, buffer)] = content
        for name, spec in operands(buffers, layer.phase).items():
            assert spec.content == expected.get(name, Content.UNSET), name


@pytest.mark.parametrize("is_served", [True, False], ids=["served", "not served"])
def test_a_query_has_a_buffer_of_its_own_exactly_when_no_linear_gives_it(is_served: bool) -> None:
    buffers = plan(Parallel(), served_elsewhere=[] if is_served else ["self_attn.q_b_proj"])
    for layer in buffers.layers:
        assert (layer.query is not None) is is_served
        spec = operands(buffers, layer.phase).get(layer.names.layer(LayerBuffer.QUERY))
        assert (spec is None) is is_served
        if spec is not None:
            assert (spec.shape, spec.content) == ((layer.tokens, 4, 192), Content.NORMAL)


def test_only_prefill_knows_what_each_position_sees() -> None:
    buffers = plan(MASKED)
    for layer in buffers.layers:
        assert (layer.names.layer(LayerBuffer.SEEN) in operands(buffers, layer.phase)) is layer.is_extend
