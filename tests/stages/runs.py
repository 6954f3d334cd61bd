"""Run stages one after another over a small recipe, each inside its own contract and under its own meter."""

from __future__ import annotations

import re
import shutil
import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from pipeline.buffers.decode_set import AdapterKind
from pipeline.engine.children import Children
from pipeline.engine.context import Context, Ended, Slot
from pipeline.engine.events import Event, Events
from pipeline.engine.figures import Figures
from pipeline.engine.stage import Result, Skipped, Stage
from pipeline.kernels.reference import ReferenceKernels
from pipeline.places import Places
from pipeline.recipe import Device, DiscoverySource, Recipe
from pipeline.slots import CHILDREN, EVENTS, KERNELS, PLACES, RECIPE, RECIPE_YAML
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import server, target, tiny

F = TypeVar("F", bound=Figures)
SMALL_FLAGS: dict[str, dict[str, Any]] = {
    "sglang": {"cuda_graph_max_bs": 8, "chunked_prefill_size": 16},
    "vllm": {"cuda_graph_max_bs": 8},
}
"""A decode batch of 8, and of SGLang 16 tokens of prefill."""


class RecordingKernels(ReferenceKernels):
    """Reference kernels that note what is asked of the allocator; `free` replaces what the machine has."""

    def __init__(self, free: int | None = None) -> None:
        super().__init__()
        self.free = free
        self.allocations: list[int] = []

    def free_bytes(self) -> int:
        """The replaced figure, or the machine's."""
        return super().free_bytes() if self.free is None else self.free

    def allocate(self, num_bytes: int) -> Tensor:
        """Note the size and allocate."""
        self.allocations.append(num_bytes)
        return super().allocate(num_bytes)


def recipe_of(
    model: Model | None = None,
    parallel: Parallel | None = None,
    *,
    adapter: AdapterKind = AdapterKind.auto,
    memory_limit_bytes: int | None = None,
    name: str = "sglang",
    **flags: Any,
) -> Recipe:
    """The tiny model on one GPU with a decode batch of 8, or what is given; `name` and `flags` are the server's."""
    return Recipe(
        model=model or tiny(),
        parallel=parallel or Parallel(name="single"),
        server=server(name, **(SMALL_FLAGS[name] | flags)),
        target=target(),
        device=Device(memory_limit_bytes=memory_limit_bytes),
        adapter=adapter,
    )


UNKNOWN = "Qwen3VLMoeForConditionalGeneration"
NOT_KNOWN = f"no rules for {UNKNOWN}: the server is asked"


def recipe_without_rules(**options: Any) -> Recipe:
    """A model that no rules know, so that the server is asked; `options` replace others of the recipe's."""
    recipe = replace(recipe_of(tiny(architectures=[UNKNOWN])), discovery=DiscoverySource.server)
    return replace(recipe, **options)


def completed(result: Result | Skipped) -> Result:
    """The result of a stage that must not have been skipped."""
    assert isinstance(result, Result), result
    return result


def skipped(result: Result | Skipped) -> Skipped:
    """The result of a stage that must have been skipped."""
    assert isinstance(result, Skipped), result
    return result


def figures_of(kind: type[F], result: Result | Skipped) -> F:
    """The only figures of this kind that a stage reported."""
    (figures,) = [figures for figures in result.figures if isinstance(figures, kind)]
    return figures


def name_of(stage: Stage) -> str:
    """A stage's name in a recipe, from that of its class."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(stage).__name__).lower()


@dataclass
class Bench:
    """A context seeded as a session seeds it; `allocated` holds the bytes of each stage that ran."""

    recipe: Recipe = field(default_factory=recipe_of)
    kernels: RecordingKernels = field(default_factory=RecordingKernels)
    folder: Path | None = None
    """Where the places are; None means a folder of its own, which goes when the bench goes."""
    seeds: Mapping[Slot[Any], Any] = field(default_factory=dict[Slot[Any], Any])
    """Values of slots that no stage of this bench writes."""
    events: list[Event] = field(default_factory=list[Event])
    allocated: dict[str, int | None] = field(default_factory=dict[str, int | None])
    context: Context = field(default_factory=Context)
    ended: dict[str, Ended] = field(default_factory=dict[str, Ended])

    def __post_init__(self) -> None:
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="preheat-bench-"))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        self.places = Places(output=self.folder / "out", store=self.folder / "store")
        self.context.seed(RECIPE, self.recipe)
        self.context.seed(RECIPE_YAML, f"# {self.recipe.name}\n")
        self.context.seed(PLACES, self.places)
        self.context.seed(EVENTS, Events(self.events.append))
        self.context.seed(CHILDREN, Children())
        self.context.seed(KERNELS, self.kernels)
        for slot, value in self.seeds.items():
            self.context.seed(slot, value)

    def run(self, *stages: Stage) -> Result | Skipped:
        """Run them in order, each after all that ran before it; the last one's result."""
        result: Result | Skipped = Result("nothing ran")
        for stage in stages:
            name = name_of(stage)
            reads = (*stage.reads, *stage.may_read)
            view = self.context.scoped(name, reads=reads, writes=stage.writes, ancestors=dict(self.ended))
            with self.kernels.meter() as meter:
                result = stage.run(view)
            self.allocated[name] = meter.allocated_bytes
            self.ended[name] = Ended(stage.allocates_nothing, meter.allocated_bytes)
            undeclared = [figures for figures in result.figures if type(figures) not in stage.reports]
            assert undeclared == [], f"stage {name} reports figures that it does not declare"
        return result
