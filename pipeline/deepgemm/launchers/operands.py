"""Operands as a server hands them over, in device memory that nobody reads; imported in a child process only.

Tensor names: see pipeline/kernels; H heads, B requests, R output columns of one einsum group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pipeline.arithmetic import ceil_div, round_up

SCALE_BLOCK = 128
BF16 = torch.bfloat16

Launch = Callable[[int], object]
"""Launches at M rows."""


class NotInLibrary(Exception):
    """This deep_gemm does not have the function; the message names it."""


def library(*names: str) -> Callable[..., Any]:
    """The first of these functions that the asked deep_gemm has: the sgl wheels and upstream name some differently."""
    import deep_gemm

    for name in names:
        if (function := getattr(deep_gemm, name, None)) is not None:
            return function
    raise NotInLibrary(f"deep_gemm of {deep_gemm.__path__[0]} has no {' or '.join(names)}")


def has(name: str) -> bool:
    """Whether the asked deep_gemm has this function."""
    import deep_gemm

    return hasattr(deep_gemm, name)


def int32(*shape: int) -> torch.Tensor:
    """Indices, lengths or packed scales."""
    return empty(*shape, dtype=torch.int32)


def is_blackwell() -> bool:
    """Whether the target is sm_100."""
    return torch.cuda.get_device_capability()[0] == 10


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Device memory that nobody reads."""
    return torch.empty(shape, device="cuda", dtype=dtype)


def fp8(*shape: int) -> torch.Tensor:
    """FP8 data."""
    return empty(*shape, dtype=torch.float8_e4m3fn)


def operand(*shape: int, block: int = SCALE_BLOCK) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations with one scale for each 1 x `block`.

    Scales are row-major fp32, as the servers' own sweeps hand them over: DeepGEMM then launches its layout kernel too,
    so that one is discovered with the GEMM.
    """
    *outer, columns = shape
    return fp8(*shape), empty(*outer, columns // block)


def weight(*shape: int, block: int = SCALE_BLOCK) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight with one scale for each `block` x `block`."""
    *outer, rows, columns = shape
    return fp8(*shape), empty(*outer, ceil_div(rows, block), columns // block)


def packed_operand(rows: int, columns: int, *, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations or a weight whose UE8M0 scales (1 x `block`) are packed four to an int32, rows contiguous."""
    aligned_rows = round_up(rows, 4)
    words = columns // block // 4
    scale = torch.empty_strided((rows, words), (1, aligned_rows), device="cuda", dtype=torch.int32)
    return fp8(rows, columns), scale


def first_rows(pair: tuple[torch.Tensor, torch.Tensor], m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first m rows of data and scales."""
    return pair[0][:m], pair[1][:m]


def fp4_weight(groups: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """FP4 experts, two to a byte, with packed UE8M0 scales of 1x32."""
    words = k // 32 // 4
    aligned = round_up(n, 4)
    stride = (words * aligned, 1, aligned)
    scale = torch.empty_strided((groups, n, words), stride, device="cuda", dtype=torch.int32)
    return empty(groups, n, k // 2, dtype=torch.int8), scale


def num_sms() -> int:
    """SMs that deep_gemm uses at this moment."""
    return library("get_num_sms")()
