"""What a layer is made of: one file for each kind of attention, and the feed-forward parts; shapes only, no server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from pipeline.workload.linears import Linear
from pipeline.workload.problems import NotDeepGemm


@dataclass(frozen=True, slots=True)
class Geometry:
    """How a dummy attention reads its query on one rank: `query` names a linear and the first columns are the heads."""

    query: str
    heads: int
    head: int
    v_head: int


class Attention(Protocol):
    """One kind of attention; equal objects are the same kind."""

    @property
    def kind(self) -> str:
        """A short name, distinct within a model."""
        ...

    def linears(self, hidden: int, tp: int, layers: Sequence[int]) -> list[Linear]:
        """Its quantised linears over `tp` ranks, in the order in which they run."""
        ...

    def layout_problems(self, tp: int) -> list[str]:
        """Divisions over `tp` ranks that leave a remainder, one line each."""
        ...

    def never(self) -> list[NotDeepGemm]:
        """Its products that hold no block-FP8 weight, whatever the flags."""
        ...

    def geometry(self, tp: int) -> Geometry:
        """What a dummy run needs to know."""
        ...


def must_divide(what: str, total: int, by: str, divisor: int, key: str) -> list[str]:
    """One line when a division leaves a remainder."""
    return [] if total % divisor == 0 else [f"{what} {total} must be divisible by {by} {divisor}; change {key}"]
