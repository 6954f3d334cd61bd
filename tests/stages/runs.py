"""Run stages one after another over a small recipe, each inside its own contract and under its own meter."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from pipeline.buffers.decode_set import AdapterKind
from pipeline.engine.children import Children
from pipeline.engine.context import Context
from pipeline.engine.events import Event, Events
from pipeline.engine.stage import Result, Skipped, Stage
from pipeline.kernels.reference import ReferenceKernels
from pipeline.recipe import Device, Recipe
from pipeline.slots import CHILDREN, EVENTS, KERNELS, RECIPE
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel
from tests.workload.recipes import server, target, tiny


class RecordingKernels(ReferenceKernels):
    """Reference kernels that note what is asked of the allocator; `free` replaces what the machine has."""

    def __init__(self, free: int | None = None) -> None:
        super().__init__()
        self.free = free
        self.asked: list[int] = []

    def free_bytes(self) -> int:
        """The replaced figure, or the machine's."""
        return super().free_bytes() if self.free is None else self.free

    def allocate(self, num_bytes: int) -> Tensor:
        """Note the size and allocate."""
        self.asked.append(num_bytes)
        return super().allocate(num_bytes)


def recipe_of(
    model: Model | None = None,
    parallel: Parallel | None = None,
    *,
    adapter: AdapterKind = AdapterKind.auto,
    memory_limit_bytes: int | None = None,
    **flags: Any,
) -> Recipe:
    """The tiny model on one GPU with a decode batch of 8, or what is given."""
    return Recipe(
        model=model or tiny(),
        parallel=parallel or Parallel(name="single"),
        server=server(**{"cuda_graph_max_bs": 8, "chunked_prefill_size": 16, **flags}),
        target=target(),
        device=Device(memory_limit_bytes=memory_limit_bytes),
        adapter=adapter,
    )


@dataclass
class Bench:
    """A context seeded as run.py seeds it; `allocated` holds the bytes of each stage that ran."""

    recipe: Recipe = field(default_factory=recipe_of)
    kernels: RecordingKernels = field(default_factory=RecordingKernels)
    events: list[Event] = field(default_factory=list[Event])
    allocated: dict[str, int | None] = field(default_factory=dict[str, int | None])
    context: Context = field(default_factory=Context)

    def __post_init__(self) -> None:
        self.context.seed(RECIPE, self.recipe)
        self.context.seed(KERNELS, self.kernels)
        self.context.seed(EVENTS, Events(self.events.append))
        self.context.seed(CHILDREN, Children())

    def run(self, *stages: Stage) -> Result | Skipped:
        """Run them in order; the last one's result."""
        for stage in stages:
            name = type(stage).__name__.lower()
            with self.kernels.meter() as meter:
                result = stage.run(
                    self.context.scoped(name, reads=(*stage.reads, *stage.may_read), writes=stage.writes)
                )
            self.allocated[name] = meter.allocated_bytes
            assert set(result.figures) <= set(stage.figures), "a figure that the stage does not declare"
        return result
