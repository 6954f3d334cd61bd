"""The formulas of pipeline.kernels in fp64, written apart from the reference; one metric, one tolerance per format."""

from __future__ import annotations

import torch
from torch import Tensor

from pipeline.kernels.protocol import Quantized

BLOCK = 128
FP8 = torch.float8_e4m3fn
# 1 - cosine-like similarity, as DeepGEMM's calc_diff; what rounding the output to the format may cost.
MAX_DIFFERENCE = {torch.float32: 1e-10, torch.bfloat16: 1e-5}


def difference(actual: Tensor, expected: Tensor) -> float:
    """0 for equal, 1 for unrelated tensors; NaN anywhere makes it NaN, which is below no tolerance."""
    actual = actual.double()
    expected = expected.double()
    return float(1 - 2 * (actual * expected).sum() / (actual.square() + expected.square()).sum())


def random_rows(rows: int, k: int, *outer: int) -> Quantized:
    """An activation in FP8: random bytes below two, one random scale for each 1x128."""
    return torch.randn(*outer, rows, k).clamp(-2, 2).to(FP8), torch.rand(*outer, rows, k // BLOCK) + 0.5


def random_blocks(n: int, k: int, *outer: int) -> Quantized:
    """A weight in FP8: one random scale for each 128x128, a cut block included."""
    return torch.randn(*outer, n, k).clamp(-2, 2).to(FP8), torch.rand(*outer, -(-n // BLOCK), k // BLOCK) + 0.5


def rows_fp64(x: Quantized) -> Tensor:
    """Each element times the scale of its 1x128."""
    data, scale = x
    return data.double() * scale.double()[..., torch.arange(data.shape[-1]) // BLOCK]


def blocks_fp64(w: Quantized) -> Tensor:
    """Each element of [N, K] times the scale of its 128x128."""
    data, scale = w
    row = torch.arange(data.shape[0]) // BLOCK
    column = torch.arange(data.shape[1]) // BLOCK
    return data.double() * scale.double()[row][:, column]


def silu_and_mul_fp64(gate_up: Tensor) -> Tensor:
    """silu of the first half times the second half."""
    gate, up = gate_up.double().tensor_split(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up
