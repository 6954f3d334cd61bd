"""Whole numbers: rounding, and lists of them as text."""

from __future__ import annotations

import math
from collections.abc import Sequence


def ceil_div(n: int, divisor: int) -> int:
    """n / divisor, rounded up."""
    return -(-n // divisor)


def round_up(n: int, multiple: int) -> int:
    """The least multiple that is not below n."""
    return ceil_div(n, multiple) * multiple


def round_up_to_all(n: int, multiples: Sequence[int]) -> int:
    """The least number that is not below n and a multiple of each: rounding one after the other would miss it."""
    return round_up(n, math.lcm(*multiples))


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: 0-2, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
