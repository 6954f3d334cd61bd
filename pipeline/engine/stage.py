"""The contract of a stage: its fields are its config schema, its slots are its place in the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, ClassVar

from pipeline.engine.context import Slot, View
from pipeline.engine.errors import IncompleteError
from pipeline.engine.figures import Figures
from pipeline.engine.tables import Table


class Resource(Enum):
    """What a stage holds while it runs."""

    DEVICE = auto()
    """The device; one such stage at a time."""
    CORES = auto()
    """CPU cores and disk only; runs beside a stage that holds the device."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a stage reports: a line for people, figures for report.json, tables that are printed at the end."""

    summary: str
    figures: tuple[Figures, ...] = ()
    tables: tuple[Table, ...] = ()
    incomplete: IncompleteError | None = None
    """Why the run must not end with exit code 0; the stages after this one go on with what it handed on."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """The stage did not apply; the reason is for the user, the figures are what it measured all the same."""

    reason: str
    figures: tuple[Figures, ...] = ()


@dataclass(kw_only=True)
class Stage(ABC):
    """Subclasses are dataclasses; every field is an option of the stage in the recipe."""

    reads: ClassVar[tuple[Slot[Any], ...]] = ()
    may_read: ClassVar[tuple[Slot[Any], ...]] = ()
    """Slots that the stage uses with `ctx.get` where an ancestor wrote them, and does without elsewhere."""
    writes: ClassVar[tuple[Slot[Any], ...]] = ()
    resource: ClassVar[Resource] = Resource.CORES
    reports: ClassVar[tuple[type[Figures], ...]] = ()
    """The kinds of figures that it may report; those that a run did not measure are null in report.json."""
    allocates_nothing: ClassVar[bool] = False
    """Whether it works in memory that was reserved before; what it allocates all the same fails the run's proof."""
    leaves_output: ClassVar[bool] = False
    """Whether it leaves files in the output directory, which then gets the report too."""

    @abstractmethod
    def run(self, ctx: View) -> Result | Skipped:
        """Do the work; raise a WarmupError for what the user must know."""

    def config_errors(self, recipe: Any) -> list[str]:
        """What is wrong with the stage's options, or with what it reads of the recipe, one line each."""
        return []

    def preview(self, recipe: Any) -> str | None:
        """What mode=plan prints of this stage: computed from the recipe alone, nothing is touched."""
        return None
