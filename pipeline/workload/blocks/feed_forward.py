"""Feed-forward parts: dense, and experts with or without shared ones."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.workload.linears import Linear, Role, Split, column, row

FP4_EXPERTS = "fp4"
# What narrows the experts of one rank, for messages.
EXPERTS_KEY = "parallel.tp, or raise parallel.ep"


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """gate and up merged, then down."""

    intermediate: int


@dataclass(frozen=True, slots=True, kw_only=True)
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

    @property
    def is_fp4(self) -> bool:
        """Whether their weights are FP4."""
        return self.scheme == FP4_EXPERTS


FeedForward = DenseMlp | Experts


@dataclass(frozen=True, slots=True)
class GatedSize:
    """A gated feed-forward part before it is spread over ranks."""

    hidden: int
    intermediate: int


def gated(name: str, role: Role, size: GatedSize, *, tp: int, layers: tuple[int, ...]) -> list[Linear]:
    """A gated feed-forward part over `tp` ranks."""
    hidden = size.hidden
    shard = size.intermediate // tp
    gate_up = f"{name}.gate_up_proj"
    return [
        Linear(gate_up, role, split=column(tp), parts=(shard, shard), k=hidden, layers=layers),
        Linear(f"{name}.down_proj", role, split=row(tp), parts=(hidden,), k=shard, layers=layers, source=gate_up),
    ]


def routed(experts: Experts, *, hidden: int, groups: int, tp: int, layers: tuple[int, ...]) -> list[Linear]:
    """The two grouped products of the experts that one rank holds; their scale blocks are checked for every tp."""
    shard = experts.intermediate // tp
    gate_up = Linear(
        "mlp.experts.w13",
        Role.EXPERTS,
        split=Split.COLUMN,
        parts=(shard, shard),
        k=hidden,
        layers=layers,
        groups=groups,
        shard_key=EXPERTS_KEY,
    )
    down = Linear(
        "mlp.experts.w2",
        Role.EXPERTS,
        split=Split.ROW,
        parts=(hidden,),
        k=shard,
        layers=layers,
        groups=groups,
        shard_key=EXPERTS_KEY,
    )
    return [gate_up, down]
