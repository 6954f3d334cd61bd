"""What stages share: typed write-once slots, seen by each stage through its own contract."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pipeline.engine.errors import SlotError

T = TypeVar("T")
SEEDED = "what the run started from"


@dataclass(frozen=True)
class Slot(Generic[T]):
    """A named place in the context for one value of type T."""

    name: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A stage that ended before another began, because that one needs it."""

    allocates_nothing: bool
    """Whether it promised to."""
    allocated_bytes: int | None
    """What it allocated all the same; None where that is not measured."""


class Context:
    """Holds the slots of one run; stages get a `View` of it."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._writers: dict[str, str] = {}
        self._lock = threading.Lock()

    def seed(self, slot: Slot[T], value: T) -> None:
        """Put a value there before any stage runs; every stage may read it."""
        self.write(slot, value, by=SEEDED)

    def write(self, slot: Slot[T], value: T, *, by: str) -> None:
        """Fill an empty slot; SlotError when it holds something."""
        with self._lock:
            if slot.name in self._values:
                raise SlotError(f"slot {slot.name!r} is written once, and {self._writers[slot.name]} filled it already")
            self._values[slot.name] = value
            self._writers[slot.name] = by

    def read(self, slot: Slot[T]) -> T:
        """The slot's value; SlotError when it is empty."""
        with self._lock:
            if slot.name not in self._values:
                raise SlotError(f"slot {slot.name!r} is empty; the stage that writes it has not run")
            return cast(T, self._values[slot.name])

    def writer(self, slot: Slot[Any]) -> str | None:
        """Who filled the slot: a stage's name or SEEDED; None while it is empty."""
        with self._lock:
            return self._writers.get(slot.name)

    def scoped(
        self,
        stage: str,
        *,
        reads: Iterable[Slot[Any]],
        writes: Iterable[Slot[Any]],
        ancestors: Mapping[str, Ended],
    ) -> View:
        """The context as one stage may see it; `ancestors` are all stages that ended because this one needs them."""
        may_read = frozenset(slot.name for slot in reads)
        may_write = frozenset(slot.name for slot in writes)
        return View(self, stage, may_read, may_write, ancestors)


@dataclass(frozen=True, slots=True)
class View:
    """The context, restricted to what one stage declared and to what its ancestors wrote.

    What a stage that is no ancestor wrote is never seen: whether it has run yet is a matter of timing.
    """

    _context: Context
    _stage: str
    _reads: frozenset[str]
    _writes: frozenset[str]
    ancestors: Mapping[str, Ended]
    """Every stage that ended because this one needs it, directly or not, by its name."""

    def __getitem__(self, slot: Slot[T]) -> T:
        self._require_declared(slot, "reads")
        if not self._is_visible(slot) and (writer := self._context.writer(slot)) is not None:
            raise SlotError(
                f"stage {self._stage!r} reads {slot.name!r}, which {writer!r} wrote; {writer!r} is none of its "
                f"ancestors: add it to the needs of {self._stage!r}"
            )
        return self._context.read(slot)

    def get(self, slot: Slot[T]) -> T | None:
        """The slot's value; None where no ancestor wrote it."""
        self._require_declared(slot, "may_read")
        return self._context.read(slot) if self._is_visible(slot) else None

    def __setitem__(self, slot: Slot[T], value: T) -> None:
        if slot.name not in self._writes:
            raise SlotError(f"stage {self._stage!r} writes {slot.name!r} without declaring it; add it to `writes`")
        self._context.write(slot, value, by=self._stage)

    def _require_declared(self, slot: Slot[Any], where: str) -> None:
        if slot.name not in self._reads:
            raise SlotError(f"stage {self._stage!r} reads {slot.name!r} without declaring it; add it to `{where}`")

    def _is_visible(self, slot: Slot[Any]) -> bool:
        writer = self._context.writer(slot)
        return writer == SEEDED or writer in self.ancestors
