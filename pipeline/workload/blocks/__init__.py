"""What a layer is made of: one file for each kind of attention, and the feed-forward parts; shapes only, no server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pipeline.workload.linears import Linear, NotDeepGemm, Refusal, Role


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def linears(self, hidden: int, tp: int, layers: tuple[int, ...]) -> list[Linear]:
        """Its quantised linears over `tp` ranks, in the order in which they run."""
        ...

    def refusals(self, tp: int) -> list[Refusal]:
        """Divisions over `tp` ranks that leave a remainder."""
        ...

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        """Its products that hold no block-FP8 weight, whatever the flags."""
        ...

    def geometry(self, tp: int) -> Geometry:
        """What a dummy run needs to know."""
        ...


@dataclass(frozen=True, slots=True)
class Divisor:
    """A number that must divide a size, what it is called, and the option to change."""

    name: str
    number: int
    key: str


def attention_tp(tp: int) -> Divisor:
    """The ranks that share one attention layer."""
    return Divisor("the attention tp", tp, "parallel.tp or attn_dp")


def must_divide(what: str, total: int, by: Divisor, *roles: Role) -> list[Refusal]:
    """One refusal when the division leaves a remainder; `roles`: the linears that are cut by it."""
    if total % by.number == 0:
        return []
    return [Refusal(f"{what} {total} must be divisible by {by.name} {by.number}; change {by.key}", roles)]
