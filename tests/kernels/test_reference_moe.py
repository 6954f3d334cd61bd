from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pipeline.kernels.protocol import Quantized
from pipeline.kernels.reference import ReferenceKernels
from tests.kernels.oracle import FP8, blocks_fp64, difference, random_blocks, rows_fp64, silu_and_mul_fp64

KERNELS = ReferenceKernels()
TOKENS = 7
HIDDEN = 256
INNER = 128
EXPERTS = 5
ROUTES = 3
ALIGNMENT = 8
QUICK = settings(deadline=None, database=None, max_examples=40)


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


@st.composite
def routes(draw: st.DrawFn) -> Tensor:
    """Experts of each token, none twice for one token; some experts may get nothing."""
    experts = draw(st.integers(1, 6))
    per_token = draw(st.integers(1, experts))
    tokens = draw(st.lists(st.permutations(range(experts)), min_size=1, max_size=12))
    return torch.tensor([order[:per_token] for order in tokens])


# Routing.


def test_route_weights_sum_to_one() -> None:
    ids = torch.empty(TOKENS, ROUTES, dtype=torch.int64)
    weights = torch.empty(TOKENS, ROUTES)
    KERNELS.route(torch.randn(TOKENS, HIDDEN), torch.randn(EXPERTS, HIDDEN), ids, weights)
    torch.testing.assert_close(weights.sum(-1), torch.ones(TOKENS))
    assert weights.gt(0).all()


def test_the_routes_are_the_experts_with_the_largest_sigmoid_scores() -> None:
    x = torch.randn(TOKENS, 64) / 8
    gate = torch.randn(EXPERTS, 64)
    ids = torch.empty(TOKENS, ROUTES, dtype=torch.int64)
    weights = torch.empty(TOKENS, ROUTES)
    KERNELS.route(x, gate, ids, weights)
    for token in range(TOKENS):
        scores = [float(1 / (1 + torch.exp(-(x[token].double() @ gate[expert].double())))) for expert in range(EXPERTS)]
        best = sorted(range(EXPERTS), key=lambda expert: -scores[expert])[:ROUTES]
        assert ids[token].tolist() == best
        total = sum(scores[expert] for expert in best)
        assert weights[token].tolist() == pytest.approx([scores[expert] / total for expert in best], rel=1e-4)


# Dispatch.


@given(ids=routes())
@QUICK
def test_contiguous_rows_of_an_expert_stand_together_from_an_aligned_row(ids: Tensor) -> None:
    group = torch.full((256,), 9, dtype=torch.int32)
    row = torch.empty_like(ids)
    KERNELS.dispatch_contiguous(ids, int(ids.max()) + 1, ALIGNMENT, group, row)
    assert row.flatten().unique().numel() == ids.numel(), "no row is given twice"
    assert torch.equal(group[row].long(), ids)
    assert int((group >= 0).sum()) == ids.numel(), "an unused row belongs to no group"
    for expert in ids.unique().tolist():
        rows = (group == expert).nonzero().flatten()
        assert int(rows[0]) % ALIGNMENT == 0
        assert rows.tolist() == list(range(int(rows[0]), int(rows[0]) + rows.numel()))


@given(ids=routes())
@QUICK
def test_masked_rows_of_an_expert_fill_its_block_from_the_top(ids: Tensor) -> None:
    num_experts = 6
    block = 12
    masked_m = torch.full((num_experts,), 9, dtype=torch.int32)
    row = torch.empty_like(ids)
    KERNELS.dispatch_masked(ids, block, masked_m, row)
    assert torch.equal(row // block, ids)
    for expert in range(num_experts):
        places = sorted((row[ids == expert] - expert * block).tolist())
        assert places == list(range(int(masked_m[expert])))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, FP8], ids=str)
def test_scatter_copies_each_token_to_its_rows_and_leaves_the_others(dtype: torch.dtype) -> None:
    x = torch.randn(2, 4).to(dtype)
    row = torch.tensor([[5, 0], [2, 3]])
    out = torch.full((6, 4), 7.0).to(dtype)
    scale = torch.rand(2, 1)
    out_scale = torch.zeros(6, 1)
    KERNELS.scatter((x, scale), row, (out, out_scale))
    assert out_scale.flatten().tolist() == [scale[0], 0, scale[1], scale[1], 0, scale[0]]
    values = x.float()
    expected = torch.stack([values[0], torch.full((4,), 7.0), values[1], values[1], torch.full((4,), 7.0), values[0]])
    assert torch.equal(out.float(), expected)


def test_combine_adds_up_the_weighted_rows_of_each_token() -> None:
    y = torch.randn(6, 4)
    row = torch.tensor([[5, 0], [2, 3]])
    weights = torch.tensor([[0.25, 0.75], [0.5, 0.5]])
    out = torch.full((2, 4), 9.0)
    KERNELS.combine(y, row, weights, out)
    torch.testing.assert_close(out, torch.stack([0.25 * y[5] + 0.75 * y[0], 0.5 * y[2] + 0.5 * y[3]]))


# All together.


@dataclass(frozen=True)
class Experts:
    """Weights of both products, the tokens, and where they go; the last expert gets no token."""

    x: Tensor
    w13: Quantized
    w2: Quantized
    ids: Tensor
    weights: Tensor

    @classmethod
    def random(cls) -> Experts:
        ids = torch.stack([torch.randperm(EXPERTS - 1)[:ROUTES] for _ in range(TOKENS)])
        w13 = random_blocks(2 * INNER, HIDDEN, EXPERTS)
        w2 = random_blocks(HIDDEN, INNER, EXPERTS)
        small = w13[0], w13[1] / 64
        return cls(torch.randn(TOKENS, HIDDEN), small, w2, ids, torch.rand(TOKENS, ROUTES).softmax(-1))


def quantized(x: Tensor) -> Quantized:
    data = torch.empty(x.shape, dtype=FP8)
    scale = torch.empty(*x.shape[:-1], x.shape[-1] // 128)
    KERNELS.quantize_fp8(x, data, scale)
    return data, scale


def plain_loop(experts: Experts) -> Tensor:
    """Token by token, route by route; the activations are quantised as the kernels quantise them."""
    out = torch.zeros(TOKENS, HIDDEN, dtype=torch.float64)
    x = rows_fp64(quantized(experts.x))
    for token in range(TOKENS):
        for route in range(ROUTES):
            expert = int(experts.ids[token, route])
            gate_up = blocks_fp64((experts.w13[0][expert], experts.w13[1][expert])) @ x[token]
            activated = silu_and_mul_fp64(gate_up).float().unsqueeze(0)
            down = blocks_fp64((experts.w2[0][expert], experts.w2[1][expert])) @ rows_fp64(quantized(activated))[0]
            out[token] += float(experts.weights[token, route]) * down
    return out


def contiguous(experts: Experts) -> Tensor:
    rows = EXPERTS * ALIGNMENT
    group = torch.empty(rows, dtype=torch.int32)
    row = torch.empty_like(experts.ids)
    KERNELS.dispatch_contiguous(experts.ids, EXPERTS, ALIGNMENT, group, row)
    return through(experts, rows, row, lambda x, w, out: KERNELS.grouped_gemm_contiguous(x, w, group, out))


def masked(experts: Experts) -> Tensor:
    masked_m = torch.empty(EXPERTS, dtype=torch.int32)
    row = torch.empty_like(experts.ids)
    KERNELS.dispatch_masked(experts.ids, TOKENS, masked_m, row)

    def product(x: Quantized, w: Quantized, out: Tensor) -> None:
        blocks = x[0].view(EXPERTS, TOKENS, -1), x[1].view(EXPERTS, TOKENS, -1)
        KERNELS.grouped_gemm_masked(blocks, w, masked_m, 4, out.view(EXPERTS, TOKENS, -1))

    return through(experts, EXPERTS * TOKENS, row, product)


def through(
    experts: Experts, rows: int, row: Tensor, product: Callable[[Quantized, Quantized, Tensor], None]
) -> Tensor:
    """Scatter, both products with the activation between, combine; unused rows hold NaN."""
    x = torch.full((rows, HIDDEN), float("nan")).to(FP8), torch.full((rows, HIDDEN // 128), float("nan"))
    KERNELS.scatter(quantized(experts.x), row, x)
    gate_up = torch.full((rows, 2 * INNER), float("nan"))
    activated = torch.empty(rows, INNER)
    product(x, experts.w13, gate_up)
    KERNELS.silu_and_mul(gate_up, activated)
    down = torch.full((rows, HIDDEN), float("nan"))
    out = torch.empty(TOKENS, HIDDEN)
    product(quantized(activated), experts.w2, down)
    KERNELS.combine(down, row, experts.weights, out)
    return out


@pytest.mark.parametrize("layout", [contiguous, masked], ids=["contiguous", "masked"])
def test_dispatch_products_and_combine_together_are_a_plain_loop(layout: Callable[[Experts], Tensor]) -> None:
    experts = Experts.random()
    # A value on the edge of an FP8 step may fall to the other side in fp64.
    assert difference(layout(experts), plain_loop(experts)) < 1e-5
