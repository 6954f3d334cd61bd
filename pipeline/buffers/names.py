"""The names of a dummy layer's buffers: what sizes an operand and what launches over it address it alike."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class LayerBuffer(Enum):
    """A buffer that a layer has once."""

    HIDDEN = "hidden"
    NORMED = "normed"
    NORM_WEIGHT = "norm_weight"
    K_CACHE = "k_cache"
    V_CACHE = "v_cache"
    ATTENDED = "attended"
    QUERY = "query"
    """The query of a layer whose query projection is not on DeepGEMM."""
    SEEN = "seen"
    """Cached rows that each token of a prefill request attends to, by the token's position in its request."""
    GATE = "gate"
    IDS = "ids"
    ROUTE_WEIGHTS = "route_weights"
    ROW_OF_ROUTE = "row_of_route"
    GROUP_OF_ROW = "group_of_row"
    MASKED_M = "masked_m"
    ACTIVATED = "activated"
    """What the experts' activation gives, in rows of the grouped products."""
    COMBINED = "combined"
    TOKEN_X = "token.x"
    """The tokens in FP8, before they are scattered to the rows of their experts."""
    TOKEN_X_SCALE = "token.x_scale"


class LinearBuffer(Enum):
    """A buffer that each linear has, or each linear of one kind."""

    X = "x"
    X_SCALE = "x_scale"
    W = "w"
    W_SCALE = "w_scale"
    OUT = "out"
    ACTIVATED = "activated"
    """Of a gate-and-up projection: silu of the gate times the up half."""
    NORMED = "normed"
    """Of a linear that reads some columns of an earlier output: those columns, normed."""


@dataclass(frozen=True, slots=True)
class OperandNames:
    """The buffers of one phase, as the arena and the JSON plan name them."""

    phase: str

    def layer(self, buffer: LayerBuffer) -> str:
        """One of the layer's own."""
        return f"{self.phase}.{buffer.value}"

    def linear(self, linear: str, buffer: LinearBuffer) -> str:
        """One of the linear with this name."""
        return f"{self.phase}.{linear}.{buffer.value}"
