"""Feed-forward parts: dense, and experts with or without shared ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.workload.linears import Linear, Role, column, row


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """gate and up merged, then down."""

    intermediate: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Routed experts, and `shared_intermediate` columns of shared ones (0: none)."""

    num: int
    intermediate: int
    top_k: int
    num_shared: int = 0
    shared_intermediate: int = 0
    shared_name: str = "mlp.shared_experts"
    scheme: str | None = None
    """The experts' own quantisation where it is not that of the linears: fp4, int4, bf16."""
    is_clamped: bool = False
    """Whether the activation between the two products is clamped (swiglu_limit)."""


FeedForward = DenseMlp | Experts


def gated(name: str, role: Role, *, hidden: int, intermediate: int, tp: int, layers: Sequence[int]) -> list[Linear]:
    """A gated feed-forward part over `tp` ranks."""
    shard = intermediate // tp
    every = tuple(layers)
    return [
        Linear(f"{name}.gate_up_proj", role, column(tp), (shard, shard), hidden, every),
        Linear(f"{name}.down_proj", role, row(tp), (hidden,), shard, every, source=f"{name}.gate_up_proj"),
    ]


def routed(experts: Experts, *, hidden: int, groups: int, tp: int, layers: Sequence[int]) -> list[Linear]:
    """The two grouped products of the experts that one rank holds; their scale blocks are always checked."""
    shard = experts.intermediate // tp
    every = tuple(layers)
    key = "parallel.tp, or raise parallel.ep"
    w13 = Linear("mlp.experts.w13", Role.EXPERTS, column(2), (shard, shard), hidden, every, groups, key)
    w2 = Linear("mlp.experts.w2", Role.EXPERTS, row(2), (hidden,), shard, every, groups, key)
    return [w13, w2]
