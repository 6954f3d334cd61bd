"""What one rank holds of some layers, given over how many ranks each part is spread."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.arithmetic import round_up
from pipeline.servers.rules import Widths
from pipeline.workload.blocks.feed_forward import DenseMlp, Experts, FeedForward, GatedSize, gated, routed
from pipeline.workload.linears import Linear, Role, Split
from pipeline.workload.model import ModelFacts


def layer_linears(facts: ModelFacts, widths: Widths, layers: Sequence[int]) -> list[Linear]:
    """The linears of these layers: attention first, experts last."""
    linears = facts.attention_linears(layers, widths.attention)
    parts: dict[FeedForward, list[int]] = {}
    for layer in layers:
        parts.setdefault(facts.layers[layer].feed_forward, []).append(layer)
    for part in sorted(parts, key=lambda part: isinstance(part, Experts)):
        linears += _feed_forward(part, facts.hidden, widths, tuple(parts[part]))
    return linears


def draft_linears(facts: ModelFacts, widths: Widths) -> list[Linear]:
    """The linears of the model's own draft layer, which counts as one more layer."""
    if facts.draft is None:
        return []
    hidden = facts.hidden
    layers = (facts.num_layers,)
    projections = [
        Linear(
            f"draft.{name}",
            Role.DRAFT,
            split=Split.REPLICATED,
            parts=(hidden,),
            k=hidden,
            layers=layers,
            rows_per_token=rows,
        )
        for name, rows in facts.draft.projections
    ]
    attention = facts.draft.layer.attention.linears(hidden, widths.attention, layers)
    return projections + attention + _feed_forward(facts.draft.layer.feed_forward, hidden, widths, layers)


def _feed_forward(part: FeedForward, hidden: int, widths: Widths, layers: tuple[int, ...]) -> list[Linear]:
    if isinstance(part, DenseMlp):
        return gated("mlp", Role.DENSE_MLP, GatedSize(hidden, part.intermediate), tp=widths.dense, layers=layers)
    experts = routed(part, hidden=hidden, groups=widths.groups, tp=widths.experts, layers=layers)
    return _shared_experts(part, hidden, widths, layers) + experts


def _shared_experts(experts: Experts, hidden: int, widths: Widths, layers: tuple[int, ...]) -> list[Linear]:
    """Those that are not extra groups of the routed ones."""
    if not experts.num_shared or widths.num_fused:
        return []
    return gated(
        experts.shared_name,
        Role.SHARED_EXPERTS,
        GatedSize(hidden, round_up(experts.shared_intermediate, widths.shared * widths.shared_multiple)),
        tp=widths.shared,
        layers=layers,
    )
