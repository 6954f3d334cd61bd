"""Rows of the contiguous layout."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.servers.shared.contiguous_layout import contiguous_rows

QUICK = settings(deadline=None, database=None, max_examples=40)


@given(counts=st.lists(st.integers(0, 700), min_size=1, max_size=40).filter(any))
@QUICK
def test_contiguous_rows_hold_any_spread_of_the_routes(counts: list[int]) -> None:
    needed = sum(-(-count // 128) * 128 for count in counts)
    assert contiguous_rows(sum(counts), len(counts)) >= needed


@given(num_routes=st.integers(1, 5000), num_groups=st.integers(1, 300))
@QUICK
def test_contiguous_rows_are_exactly_what_the_worst_spread_needs(num_routes: int, num_groups: int) -> None:
    # Worst: every group but one has a single route, the last has the rest.
    used = min(num_routes, num_groups)
    worst = [1] * (used - 1) + [num_routes - used + 1]
    assert contiguous_rows(num_routes, num_groups) == sum(-(-count // 128) * 128 for count in worst)
