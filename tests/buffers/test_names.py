from __future__ import annotations

import pytest

from pipeline.buffers.names import LayerBuffer, LinearBuffer, OperandNames

MOE = OperandNames("forward.moe")


@pytest.mark.parametrize(
    ("buffer", "name"),
    [
        (LayerBuffer.HIDDEN, "forward.moe.hidden"),
        (LayerBuffer.ROW_OF_ROUTE, "forward.moe.row_of_route"),
        (LayerBuffer.TOKEN_X_SCALE, "forward.moe.token.x_scale"),
    ],
)
def test_a_buffer_of_the_layer_is_named_behind_its_phase(buffer: LayerBuffer, name: str) -> None:
    assert MOE.layer(buffer) == name


@pytest.mark.parametrize(
    ("buffer", "name"),
    [
        (LinearBuffer.W_SCALE, "forward.moe.mlp.experts.w13.w_scale"),
        (LinearBuffer.OUT, "forward.moe.mlp.experts.w13.out"),
    ],
)
def test_a_buffer_of_a_linear_is_named_behind_phase_and_linear(buffer: LinearBuffer, name: str) -> None:
    assert MOE.linear("mlp.experts.w13", buffer) == name


def test_no_two_buffers_of_a_layer_share_a_name() -> None:
    names = [MOE.layer(buffer) for buffer in LayerBuffer]
    names += [MOE.linear("self_attn.o_proj", buffer) for buffer in LinearBuffer]
    assert len(set(names)) == len(names)
