from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pipeline.buffers.contents import WEIGHT_SCALE, write_content
from pipeline.buffers.layout import Content
from pipeline.kernels.reference import ReferenceKernels

FP8 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    torch.manual_seed(0)


def written(content: int | bool | Content, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A buffer that held the byte 0xFF everywhere."""
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    buffer = torch.full((num_bytes,), 0xFF, dtype=torch.uint8).view(dtype).view(shape)
    write_content(buffer, content)
    return buffer


def test_a_number_is_written_everywhere() -> None:
    assert written(7, 3, 4, dtype=torch.int64).eq(7).all()
    assert written(True, 5, dtype=torch.bool).all()
    assert written(1, 5, dtype=torch.bfloat16).eq(1).all()


def test_what_is_unset_keeps_its_bytes() -> None:
    assert written(Content.UNSET, 16, dtype=torch.uint8).eq(0xFF).all()


def test_normal_numbers_have_a_mean_of_zero_and_a_deviation_of_one() -> None:
    values = written(Content.NORMAL, 64, 256, dtype=torch.bfloat16).double()
    assert abs(float(values.mean())) < 0.05
    assert float(values.std()) == pytest.approx(1, abs=0.05)


def test_fp8_bytes_are_never_nan_and_below_two() -> None:
    values = written(Content.FP8_BELOW_TWO, 256, 128, dtype=FP8).float()
    assert values.isfinite().all()
    assert values.abs().max() == 1.875
    assert values.unique().numel() > 100, "random, not one number"


def test_scales_of_weights_are_near_the_one_that_keeps_products_near_one() -> None:
    scales = written(Content.WEIGHT_SCALES, 4, 33)
    assert scales.ge(0.5 * WEIGHT_SCALE).all()
    assert scales.le(1.5 * WEIGHT_SCALE).all()
    assert scales.unique().numel() > 1


def test_the_token_at_each_position_sees_itself_and_those_before_it() -> None:
    assert written(Content.POSITIONS, 3, 2, dtype=torch.int64).tolist() == [[1, 1], [2, 2], [3, 3]]


@pytest.mark.parametrize("content", [*Content, 0], ids=str)
def test_nothing_is_allocated(content: int | Content) -> None:
    buffer = torch.zeros(8, 128, dtype=FP8 if content is Content.FP8_BELOW_TWO else torch.float32)
    with ReferenceKernels().meter() as meter:
        write_content(buffer, content)
    assert meter.allocated_bytes == 0
