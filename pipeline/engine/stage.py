"""The contract of a stage: its fields are its config schema, its slots are its place in the graph."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, ClassVar

from pipeline.engine.context import Slot, View


class Resource(Enum):
    """What a stage holds while it runs."""

    DEVICE = auto()
    """The device; one such stage at a time."""
    CORES = auto()
    """CPU cores and disk only; runs beside a stage that holds the device."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a stage reports: a line for people and named figures for report.json (None: not measured)."""

    summary: str
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Skipped:
    """The stage did not apply; the reason is for the user, the figures are what it measured all the same."""

    reason: str
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(kw_only=True)
class Stage(ABC):
    """Subclasses are dataclasses; every field is an option of the stage in the recipe."""

    reads: ClassVar[tuple[Slot[Any], ...]] = ()
    may_read: ClassVar[tuple[Slot[Any], ...]] = ()
    """Slots that the stage uses with `ctx.get` where an ancestor wrote them, and does without elsewhere."""
    writes: ClassVar[tuple[Slot[Any], ...]] = ()
    resource: ClassVar[Resource] = Resource.CORES
    section: ClassVar[str | None] = None
    """Where the figures go in report.json; None for a stage that reports none."""
    figures: ClassVar[tuple[str, ...]] = ()
    """Names of the figures; those a run did not measure are null."""

    @abstractmethod
    def run(self, ctx: View) -> Result | Skipped:
        """Do the work; raise a WarmupError for what the user must know."""

    def problems(self) -> list[str]:
        """What is wrong with the options, one line each."""
        return []
