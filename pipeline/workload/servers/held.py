"""What one rank holds of some layers, given over how many ranks each part is spread."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.workload.blocks.feed_forward import DenseMlp, Experts, FeedForward, gated, routed
from pipeline.workload.linears import Linear, Role, Split
from pipeline.workload.model import ModelFacts
from pipeline.workload.servers.rules import Widths


def layer_linears(facts: ModelFacts, widths: Widths, layers: Sequence[int]) -> list[Linear]:
    """The linears of these layers: attention first, experts last."""
    found = facts.attention_linears(layers, widths.attention)
    parts: dict[FeedForward, list[int]] = {}
    for layer in layers:
        parts.setdefault(facts.layers[layer].feed_forward, []).append(layer)
    for part in sorted(parts, key=lambda part: isinstance(part, Experts)):
        found += _feed_forward(part, facts.hidden, widths, parts[part])
    return found


def draft_linears(facts: ModelFacts, widths: Widths) -> list[Linear]:
    """The linears of the model's own draft layer, which counts as one more layer."""
    if facts.draft is None:
        return []
    layer = (facts.num_layers,)
    found = [
        Linear(f"draft.{name}", Role.DRAFT, Split.REPLICATED, (facts.hidden,), facts.hidden, layer, rows_per_token=rows)
        for name, rows in facts.draft.projections
    ]
    found += facts.draft.layer.attention.linears(facts.hidden, widths.attention, layer)
    return found + _feed_forward(facts.draft.layer.feed_forward, facts.hidden, widths, layer)


def _feed_forward(part: FeedForward, hidden: int, widths: Widths, layers: Sequence[int]) -> list[Linear]:
    if isinstance(part, DenseMlp):
        sizes = {"hidden": hidden, "intermediate": part.intermediate}
        return gated("mlp", Role.DENSE_MLP, **sizes, tp=widths.dense, layers=layers)
    found: list[Linear] = []
    if part.num_shared and not widths.num_fused:
        size = part.shared_intermediate
        multiple = widths.shared * widths.shared_multiple
        sizes = {"hidden": hidden, "intermediate": -(-size // multiple) * multiple}
        found = gated(part.shared_name, Role.SHARED_EXPERTS, **sizes, tp=widths.shared, layers=layers)
    return found + routed(part, hidden=hidden, groups=widths.groups, tp=widths.experts, layers=layers)
