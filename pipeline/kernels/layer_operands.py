"""The operands of one dummy layer, where they lie in the arena."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass

from torch import Tensor

from pipeline.buffers.arena import Arena
from pipeline.buffers.layer_plans import LayerPlan
from pipeline.buffers.names import LayerBuffer, LinearBuffer
from pipeline.kernels.protocol import Quantized


@dataclass(frozen=True, slots=True)
class LayerOperands:
    """Views of the layer's buffers by their names; inside the layer's phase only."""

    plan: LayerPlan
    arena: Arena

    def phase(self) -> AbstractContextManager[None]:
        """The phase in which these buffers are the layer's own."""
        return self.arena.phase(self.plan.phase)

    def randomize(self) -> None:
        """Write what the specs say: random, never zero, for a kernel may take a short cut on zeros."""
        for region in self.arena.layout.regions:
            if self.plan.phase in region.spec.phases:
                self.arena.refill(region.spec.name)

    def whole(self, buffer: LayerBuffer) -> Tensor:
        """One of the layer's own buffers."""
        return self.arena[self.plan.names.layer(buffer)]

    def rows(self, buffer: LayerBuffer, n: int) -> Tensor:
        """Its first n rows."""
        return self.arena.rows(self.plan.names.layer(buffer), n)

    def whole_of(self, linear: str, buffer: LinearBuffer) -> Tensor:
        """A buffer of the linear with this name."""
        return self.arena[self.plan.names.linear(linear, buffer)]

    def rows_of(self, linear: str, buffer: LinearBuffer, n: int) -> Tensor:
        """Its first n rows."""
        return self.arena.rows(self.plan.names.linear(linear, buffer), n)

    def weight(self, linear: str) -> Quantized:
        """The linear's weight and its scales."""
        return self.whole_of(linear, LinearBuffer.W), self.whole_of(linear, LinearBuffer.W_SCALE)
