from __future__ import annotations

import pytest
import torch

from pipeline.kernels.protocol import Quantized
from pipeline.kernels.reference import ReferenceKernels, dequantize_blocks, dequantize_rows
from tests.kernels.oracle import FP8, MAX_DIFFERENCE, blocks_fp64, difference, random_blocks, random_rows, rows_fp64

KERNELS = ReferenceKernels()
# N that is a multiple of 128, of 64 as 2112 is, and of neither.
SHAPES = [(1, 128, 128), (3, 256, 384), (5, 448, 256), (2, 2112, 128), (4, 72, 256)]
UNTOUCHED = 77.0


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


def shared_weight(n: int, k: int, groups: int) -> tuple[Quantized, Quantized]:
    """One weight for every group, as a view that repeats it and as a copy for each."""
    data, scale = random_blocks(n, k, 1)
    repeated = data.expand(groups, -1, -1), scale.expand(groups, -1, -1)
    copies = data.view(torch.uint8).repeat(groups, 1, 1).view(FP8), scale.repeat(groups, 1, 1)
    assert repeated[0].stride(0) == 0
    return repeated, copies


# Quantisation.


@pytest.mark.parametrize("shape", [(1, 128), (5, 384), (2, 3, 256)], ids=str)
@pytest.mark.parametrize("magnitude", [1e-6, 1.0, 3e4])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_a_round_trip_through_fp8_errs_by_half_a_step_at_most(
    shape: tuple[int, ...], magnitude: float, dtype: torch.dtype
) -> None:
    x = (torch.randn(shape) * magnitude).to(dtype)
    data = torch.empty(shape, dtype=FP8)
    scale = torch.empty(*shape[:-1], shape[-1] // 128)
    KERNELS.quantize_fp8(x, data, scale)
    # e4m3: 3 bits of mantissa, so 2^-4 of the value; below 2^-6 steps of 2^-9, so 2^-10 of the scale.
    each_scale = scale.double().repeat_interleave(128, dim=-1)
    bound = torch.maximum(x.double().abs() * 2**-4, each_scale * 2**-10) * (1 + 1e-5)
    assert (rows_fp64((data, scale)) - x.double()).abs().le(bound).all()


def test_the_largest_value_of_a_block_becomes_the_largest_of_fp8() -> None:
    x = torch.randn(4, 256)
    data = torch.empty(4, 256, dtype=FP8)
    scale = torch.empty(4, 2)
    KERNELS.quantize_fp8(x, data, scale)
    assert data.float().unflatten(-1, (2, 128)).abs().amax(-1).eq(448).all()


def test_each_block_has_a_scale_of_its_own() -> None:
    x = torch.cat([torch.full((1, 128), 448.0), torch.full((1, 128), 0.448)], dim=-1)
    data = torch.empty(1, 256, dtype=FP8)
    scale = torch.empty(1, 2)
    KERNELS.quantize_fp8(x, data, scale)
    assert scale[0].tolist() == pytest.approx([1.0, 1e-3])
    assert data.float().eq(448).all()


def test_a_block_of_zeros_stays_zero() -> None:
    data = torch.empty(2, 128, dtype=FP8)
    scale = torch.empty(2, 1)
    KERNELS.quantize_fp8(torch.zeros(2, 128), data, scale)
    assert data.float().eq(0).all()
    assert scale.gt(0).all()


def test_dequantised_rows_are_data_times_scale() -> None:
    x = random_rows(3, 384)
    torch.testing.assert_close(dequantize_rows(*x).double(), rows_fp64(x))


@pytest.mark.parametrize("n", [128, 448, 2112, 1])
def test_dequantised_blocks_cut_the_last_block_at_n(n: int) -> None:
    w = random_blocks(n, 256)
    torch.testing.assert_close(dequantize_blocks(*w).double(), blocks_fp64(w))


# Dense.


@pytest.mark.parametrize("dtype", MAX_DIFFERENCE, ids=str)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_the_product_is_that_of_fp64(m: int, n: int, k: int, dtype: torch.dtype) -> None:
    x = random_rows(m, k)
    w = random_blocks(n, k)
    out = torch.empty(m, n, dtype=dtype)
    KERNELS.gemm_fp8(x, w, out)
    assert difference(out, rows_fp64(x) @ blocks_fp64(w).T) < MAX_DIFFERENCE[dtype]


def test_the_product_fills_rows_of_a_larger_buffer_in_place() -> None:
    x = random_rows(2, 128)
    w = random_blocks(128, 128)
    buffer = torch.full((3, 128), UNTOUCHED)
    KERNELS.gemm_fp8(x, w, buffer[:2])
    assert difference(buffer[:2], rows_fp64(x) @ blocks_fp64(w).T) < MAX_DIFFERENCE[torch.float32]
    assert buffer[2].eq(UNTOUCHED).all()


# Grouped, masked.


@pytest.mark.parametrize("masked_m", [[3, 0, 6, 1], [0, 0, 0, 0], [6, 6, 6, 6]], ids=str)
@pytest.mark.parametrize("n", [128, 448])
def test_a_masked_product_fills_the_counted_rows_and_no_others(masked_m: list[int], n: int) -> None:
    x = random_rows(6, 256, 4)
    w = random_blocks(n, 256, 4)
    out = torch.full((4, 6, n), UNTOUCHED)
    KERNELS.grouped_gemm_masked(x, w, torch.tensor(masked_m, dtype=torch.int32), 2, out)
    for group, rows in enumerate(masked_m):
        if rows:
            expected = rows_fp64((x[0][group], x[1][group])) @ blocks_fp64((w[0][group], w[1][group])).T
            assert difference(out[group, :rows], expected[:rows]) < MAX_DIFFERENCE[torch.float32]
        assert out[group, rows:].eq(UNTOUCHED).all()


def test_a_masked_product_of_one_shared_weight_is_that_of_its_copies() -> None:
    repeated, copies = shared_weight(448, 256, 3)
    x = random_rows(4, 256, 3)
    masked_m = torch.tensor([4, 0, 2], dtype=torch.int32)
    actual = torch.zeros(3, 4, 448)
    expected = torch.zeros(3, 4, 448)
    KERNELS.grouped_gemm_masked(x, repeated, masked_m, 2, actual)
    KERNELS.grouped_gemm_masked(x, copies, masked_m, 2, expected)
    assert torch.equal(actual, expected)
    assert actual[0].ne(0).any()


# Grouped, contiguous.


@pytest.mark.parametrize(
    "groups", [[0, 0, 1, 1, -1, 3, 3, 3], [2, -1, -1, 0, 0, -1, -1, 2], [-1] * 8, [1] * 8], ids=str
)
@pytest.mark.parametrize("n", [128, 448])
def test_a_contiguous_product_fills_the_rows_of_a_group_and_no_others(groups: list[int], n: int) -> None:
    x = random_rows(8, 256)
    w = random_blocks(n, 256, 4)
    out = torch.full((8, n), UNTOUCHED)
    KERNELS.grouped_gemm_contiguous(x, w, torch.tensor(groups, dtype=torch.int32), out)
    for row, group in enumerate(groups):
        if group < 0:
            assert out[row].eq(UNTOUCHED).all()
        else:
            expected = blocks_fp64((w[0][group], w[1][group])) @ rows_fp64(x)[row]
            assert difference(out[row], expected) < MAX_DIFFERENCE[torch.float32]


def test_a_contiguous_product_of_one_shared_weight_is_that_of_its_copies() -> None:
    repeated, copies = shared_weight(448, 256, 3)
    x = random_rows(6, 256)
    groups = torch.tensor([0, 0, -1, 2, 2, 2], dtype=torch.int32)
    actual = torch.zeros(6, 448)
    expected = torch.zeros(6, 448)
    KERNELS.grouped_gemm_contiguous(x, repeated, groups, actual)
    KERNELS.grouped_gemm_contiguous(x, copies, groups, expected)
    assert torch.equal(actual, expected)
    assert actual[0].ne(0).any()


def test_one_shared_weight_may_have_a_scale_for_each_group() -> None:
    data, _ = random_blocks(128, 128, 1)
    w = data.expand(2, -1, -1), torch.tensor([1.0, 3.0]).view(2, 1, 1)
    x = random_rows(2, 128)
    out = torch.zeros(2, 128)
    KERNELS.grouped_gemm_contiguous(x, w, torch.tensor([0, 1], dtype=torch.int32), out)
    assert difference(out[1], 3 * data[0].double() @ rows_fp64(x)[1]) < MAX_DIFFERENCE[torch.float32]
