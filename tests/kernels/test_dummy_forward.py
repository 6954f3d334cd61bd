from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from pipeline.buffers.adapters import from_arena
from pipeline.buffers.arena import Arena
from pipeline.buffers.decode_set import AdapterKind
from pipeline.buffers.layer_plans import LayerPlan
from pipeline.buffers.names import LayerBuffer
from pipeline.buffers.sizing import BufferPlan, plan_buffers
from pipeline.kernels.dummy_forward import DummyLayer
from pipeline.kernels.layer_operands import LayerOperands
from pipeline.kernels.reference import ReferenceKernels
from pipeline.servers.derive import Workload
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import DEEP_GEMM, tiny, workload_of

PLAIN = Parallel()
DEEPEP = Parallel(tp=2, attn_dp=2, moe_a2a_backend=A2A.deepep)
FLAGS = {"tokens_per_request": 2, "cuda_graph_max_bs": 6, "chunked_prefill_size": 16}
# The fused (or split) down and up of the query, o_proj; each feed-forward part has two.
NUM_ATTENTION = 3
NUM_FEED_FORWARD = 2
NAN_BYTE = 0xFF


@dataclass(frozen=True)
class Run:
    """A dummy forward of one layer, and the arena it ran in."""

    workload: Workload
    buffers: BufferPlan
    arena: Arena
    kernels: ReferenceKernels

    def forward(self, layer: LayerPlan, batch: int) -> tuple[int, torch.Tensor, int | None]:
        """(GEMMs launched, the hidden states, bytes allocated); an extend-shaped layer has its own number of tokens."""
        tokens = layer.tokens if layer.is_extend else self.buffers.size.tokens_of(batch)
        operands = LayerOperands(layer, self.arena)
        with self.kernels.meter() as meter, operands.phase():
            seq_lens = from_arena(self.buffers.size, self.arena).view(batch)["seq_lens"]
            operands.randomize()
            launched = DummyLayer(operands, self.kernels).run(tokens, seq_lens)
            allocated = meter.allocated_bytes
            hidden = operands.rows(LayerBuffer.HIDDEN, tokens).clone()
        return launched, hidden, allocated


def prepared(
    parallel: Parallel,
    *,
    changes: dict[str, Any] | None = None,
    distinct: bool = False,
    left_over: int = NAN_BYTE,
    **flags: Any,
) -> Run:
    """A run over memory that holds one byte everywhere, by default what is NaN in every format."""
    torch.manual_seed(0)
    flags = FLAGS | flags
    workload = workload_of(tiny(**(changes or {})), parallel, **flags)
    buffers = plan_buffers(workload, parallel, AdapterKind.decode_graph, on_gpu=distinct)
    memory = torch.full((buffers.layout.arena_bytes,), left_over, dtype=torch.uint8)
    return Run(workload, buffers, Arena(buffers.layout, memory), ReferenceKernels())


LAYOUTS = {"contiguous": (PLAIN, DEEP_GEMM), "masked": (DEEPEP, {})}


@pytest.fixture(params=LAYOUTS)
def run(request: pytest.FixtureRequest) -> Run:
    parallel, flags = LAYOUTS[request.param]
    return prepared(parallel, **flags)


def test_a_dummy_forward_allocates_nothing(run: Run) -> None:
    assert [run.forward(layer, 6)[2] for layer in run.buffers.layers] == [0, 0, 0, 0]


def test_a_dummy_forward_writes_past_no_buffer(run: Run) -> None:
    for layer in run.buffers.layers:
        run.forward(layer, 6)
    assert run.arena.check_guards() == []


@pytest.mark.parametrize("batch", [1, 4, 6])
def test_hidden_states_come_out_finite_and_not_zero(run: Run, batch: int) -> None:
    for layer in run.buffers.layers:
        _, hidden, _ = run.forward(layer, batch)
        assert hidden.shape == (layer.tokens if layer.is_extend else 2 * batch, 512)
        assert hidden.isfinite().all(), layer.phase
        assert hidden.abs().sum(-1).gt(0).all(), layer.phase


def test_a_dummy_forward_moves_no_buffer(run: Run) -> None:
    before = run.arena.addresses()
    for layer in run.buffers.layers:
        run.forward(layer, 6)
    assert run.arena.addresses() == before


def test_every_gemm_of_a_layer_is_launched(run: Run) -> None:
    dense, moe, dense_extend, moe_extend = (run.forward(layer, 2)[0] for layer in run.buffers.layers)
    assert dense == NUM_ATTENTION + NUM_FEED_FORWARD
    assert moe == NUM_ATTENTION + 2 * NUM_FEED_FORWARD, "shared experts and routed ones"
    assert (dense_extend, moe_extend) == (dense + 1, moe + 1), "prefill that does not absorb kv_b_proj launches it too"


def test_rows_past_the_batch_are_left_alone(run: Run) -> None:
    layer = run.buffers.layers[0]
    operands = LayerOperands(layer, run.arena)
    with operands.phase():
        operands.whole(LayerBuffer.ATTENDED).fill_(3)
    run.forward(layer, 4)
    with operands.phase():
        assert operands.whole(LayerBuffer.ATTENDED)[8:].eq(3).all()


def test_the_layouts_of_experts_are_those_of_the_servers_dispatch() -> None:
    assert [layer.masked_rows for layer in prepared(PLAIN, **DEEP_GEMM).buffers.layers] == [None] * 4
    assert [layer.masked_rows for layer in prepared(DEEPEP).buffers.layers] == [None, 256, None, None]


def test_a_prefill_that_absorbs_kv_b_proj_does_not_launch_it() -> None:
    decode, extend = (prepared(PLAIN, enable_deterministic_inference=True).buffers.layers[index] for index in (0, 2))
    assert extend.is_extend
    assert extend.linears == decode.linears


def test_a_token_of_prefill_sees_itself_and_what_came_before_it() -> None:
    run = prepared(PLAIN)
    layer = run.buffers.layers[2]
    run.forward(layer, 1)
    operands = LayerOperands(layer, run.arena)
    with operands.phase():
        seen = operands.whole(LayerBuffer.SEEN)
        attended = operands.whole(LayerBuffer.ATTENDED)
        values = operands.whole(LayerBuffer.V_CACHE)
        assert seen[:, 0].tolist() == list(range(1, 65))
        # The first token of a request sees one row only, so its attention is that row, whatever the scores.
        for request in range(layer.requests):
            expected = values[request, 0].expand(attended.shape[1], -1)
            assert torch.equal(attended[64 * request], expected)


def test_a_model_without_a_query_rank_runs_too() -> None:
    run = prepared(PLAIN, changes={"q_lora_rank": None})
    for layer in run.buffers.layers:
        launched, hidden, allocated = run.forward(layer, 3)
        assert launched >= NUM_ATTENTION + NUM_FEED_FORWARD
        assert hidden.isfinite().all()
        assert allocated == 0
    assert run.arena.check_guards() == []


BLOCK_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}


@pytest.mark.parametrize(
    ("module", "num_fewer"),
    [
        ("fused_qkv_a_proj_with_mqa", 1),
        ("q_b_proj", 1),
        ("o_proj", 1),
        ("mlp.down_proj", 1),
        ("mlp.gate_up_proj", 2),
    ],
)
def test_a_linear_that_the_checkpoint_keeps_in_bf16_is_left_out(module: str, num_fewer: int) -> None:
    # The dense layer in prefill. What the others read of the missing one is taken from elsewhere; without its gate
    # and up half, a feed-forward part has nothing to activate.
    run = prepared(PLAIN, changes={"quantization_config": BLOCK_FP8 | {"modules_to_not_convert": [module]}})
    layer = run.buffers.layers[2]
    launched, hidden, allocated = run.forward(layer, 3)
    assert launched == NUM_ATTENTION + 1 + NUM_FEED_FORWARD - num_fewer
    assert hidden.isfinite().all()
    assert hidden.abs().sum(-1).gt(0).all()
    assert allocated == 0
    assert run.arena.check_guards() == []


def test_fused_shared_experts_are_routed_and_not_run_apart() -> None:
    fused = {"n_routed_experts": 256}
    run = prepared(PLAIN, changes=fused, cuda_graph_max_bs=2, tokens_per_request=1, **DEEP_GEMM)
    launched, hidden, allocated = run.forward(run.buffers.layers[1], 2)
    assert launched == NUM_ATTENTION + NUM_FEED_FORWARD
    assert hidden.isfinite().all()
    assert allocated == 0


def test_a_weight_for_each_expert_runs_as_well() -> None:
    run = prepared(PLAIN, distinct=True)
    _, hidden, allocated = run.forward(run.buffers.layers[1], 8)
    assert hidden.isfinite().all()
    assert allocated == 0
    assert run.arena.check_guards() == []


@pytest.mark.parametrize("kind", LAYOUTS)
def test_what_the_memory_held_before_changes_nothing(kind: str) -> None:
    parallel, flags = LAYOUTS[kind]
    for layer in range(4):
        # `prepared` seeds, so each forward draws the same random operands.
        runs = (prepared(parallel, left_over=byte, **flags) for byte in (NAN_BYTE, 0, 0x3C))
        first, *later = (run.forward(run.buffers.layers[layer], 3)[1] for run in runs)
        assert all(torch.equal(first, hidden) for hidden in later)
