from __future__ import annotations

import math

import pytest
import torch

from pipeline.kernels.protocol import Cache
from pipeline.kernels.reference import RMS_EPSILON, ReferenceKernels
from tests.kernels.oracle import MAX_DIFFERENCE, difference, silu_and_mul_fp64

KERNELS = ReferenceKernels()


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("dtype", MAX_DIFFERENCE, ids=str)
def test_rms_norm_divides_each_row_by_its_root_mean_square(dtype: torch.dtype) -> None:
    x = torch.randn(5, 96) * 10
    weight = torch.rand(96)
    out = torch.empty(5, 96, dtype=dtype)
    KERNELS.rms_norm(x, weight, out)
    mean = torch.stack([x[:, column].double() ** 2 for column in range(96)]).sum(0) / 96
    expected = x.double() / torch.sqrt(mean + RMS_EPSILON).unsqueeze(1) * weight.double()
    assert difference(out, expected) < MAX_DIFFERENCE[dtype]


def test_rms_norm_takes_columns_of_a_wider_tensor() -> None:
    wide = torch.randn(3, 100)
    out = torch.empty(3, 60)
    KERNELS.rms_norm(wide[:, :60], torch.ones(60), out)
    assert out.double().square().mean(-1).sub(1).abs().lt(1e-4).all()


def test_rms_norm_of_zeros_is_zero() -> None:
    out = torch.empty(2, 8)
    KERNELS.rms_norm(torch.zeros(2, 8), torch.ones(8), out)
    assert out.eq(0).all()


@pytest.mark.parametrize("dtype", MAX_DIFFERENCE, ids=str)
def test_silu_and_mul_gates_the_second_half_with_the_first(dtype: torch.dtype) -> None:
    gate_up = torch.randn(7, 64) * 4
    out = torch.empty(7, 32, dtype=dtype)
    KERNELS.silu_and_mul(gate_up, out)
    assert difference(out, silu_and_mul_fp64(gate_up)) < MAX_DIFFERENCE[dtype]


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seq_lens: list[int], scale: float) -> torch.Tensor:
    """Request by request, head by head, in fp64."""
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=torch.float64)
    for b, length in enumerate(seq_lens):
        for h in range(q.shape[1]):
            scores = [math.exp(scale * float(q[b, h].double() @ k[b, s].double())) for s in range(length)]
            for s, score in enumerate(scores):
                out[b, h] += score / sum(scores) * v[b, s].double()
    return out


@pytest.mark.parametrize("seq_lens", [[1, 1, 1], [1, 3, 5], [5, 5, 5]], ids=str)
@pytest.mark.parametrize("dtype", MAX_DIFFERENCE, ids=str)
def test_attention_is_the_softmax_over_the_cached_rows(seq_lens: list[int], dtype: torch.dtype) -> None:
    q = torch.randn(3, 4, 16)
    k = torch.randn(3, 5, 16)
    v = torch.randn(3, 5, 8)
    out = torch.empty(3, 4, 8, dtype=dtype)
    KERNELS.attention(q, Cache(k, v, torch.tensor(seq_lens)), 0.25, out)
    assert difference(out, attended(q, k, v, seq_lens, 0.25)) < MAX_DIFFERENCE[dtype]


def test_attention_never_looks_past_the_sequence() -> None:
    q = torch.randn(2, 3, 16)
    k = torch.randn(2, 6, 16)
    v = torch.randn(2, 6, 8)
    cache = Cache(k, v, torch.tensor([2, 4]))
    before = torch.empty(2, 3, 8)
    after = torch.empty(2, 3, 8)
    KERNELS.attention(q, cache, 0.25, before)
    k[0, 2:] = 1e4
    v[0, 2:] = -1e4
    k[1, 4:] = 1e4
    v[1, 4:] = -1e4
    KERNELS.attention(q, cache, 0.25, after)
    assert torch.equal(before, after)


def test_attention_to_one_row_is_that_row() -> None:
    v = torch.randn(2, 6, 8)
    out = torch.empty(2, 3, 8)
    cache = Cache(torch.randn(2, 6, 16), v, torch.ones(2, dtype=torch.int64))
    KERNELS.attention(torch.randn(2, 3, 16), cache, 0.25, out)
    torch.testing.assert_close(out, v[:, :1].expand(-1, 3, -1))
