from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.arithmetic import ceil_div, round_up, round_up_to_all, spans

MULTIPLES = st.lists(st.integers(1, 12), min_size=1, max_size=4)


def test_one_multiple_suits_tp_and_cp_together() -> None:
    assert round_up_to_all(129, [8, 3]) == 144


def test_rounding_one_after_the_other_would_miss_the_first() -> None:
    # Context parallel 2 and attention tp 3.
    one_after_the_other = round_up(round_up(7, 3), 2)
    assert one_after_the_other % 3 != 0
    assert round_up_to_all(7, [2, 3]) == 12


@given(n=st.integers(0, 5000), divisor=st.integers(1, 300))
@settings(deadline=None, database=None)
def test_a_quotient_is_rounded_up_and_exact_without_a_remainder(n: int, divisor: int) -> None:
    quotient = ceil_div(n, divisor)
    assert (quotient - 1) * divisor < n <= quotient * divisor
    assert ceil_div(n * divisor, divisor) == n


@given(n=st.integers(0, 5000), multiples=MULTIPLES)
@settings(deadline=None, database=None)
def test_the_result_is_the_least_multiple_of_each_that_is_not_below(n: int, multiples: list[int]) -> None:
    rounded = round_up_to_all(n, multiples)
    assert rounded >= n
    assert all(rounded % multiple == 0 for multiple in multiples)
    assert not any(all(m % multiple == 0 for multiple in multiples) for m in range(n, rounded))


@given(n=st.integers(0, 5000), multiples=MULTIPLES)
@settings(deadline=None, database=None)
def test_what_is_rounded_already_stays(n: int, multiples: list[int]) -> None:
    rounded = round_up_to_all(n, multiples)
    assert round_up_to_all(rounded, multiples) == rounded


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([], ""), ([5], "5"), ([0, 1, 2], "0-2"), ([0, 1, 2, 5], "0-2, 5"), ([1, 3, 4, 9], "1, 3-4, 9")],
    ids=str,
)
def test_ascending_numbers_are_shown_as_spans(numbers: list[int], shown: str) -> None:
    assert spans(numbers) == shown
