"""What stages share: typed write-once slots, seen by each stage through its own contract."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from pipeline.engine.errors import SlotError

T = TypeVar("T")


@dataclass(frozen=True)
class Slot(Generic[T]):
    """A named place in the context for one value of type T."""

    name: str


class Context:
    """Holds the slots of one run; stages get a `View` of it."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = threading.Lock()

    def seed(self, slot: Slot[T], value: T) -> None:
        """Put a value there before any stage runs."""
        self.write(slot, value)

    def write(self, slot: Slot[T], value: T) -> None:
        """Fill an empty slot; SlotError when it holds something."""
        with self._lock:
            if slot.name in self._values:
                raise SlotError(f"slot {slot.name!r} is written once, and it is filled already")
            self._values[slot.name] = value

    def read(self, slot: Slot[T]) -> T:
        """The slot's value; SlotError when it is empty."""
        with self._lock:
            if slot.name not in self._values:
                raise SlotError(f"slot {slot.name!r} is empty; the stage that writes it has not run")
            return cast(T, self._values[slot.name])

    def holds(self, slot: Slot[Any]) -> bool:
        """Whether the slot is filled."""
        with self._lock:
            return slot.name in self._values

    def scoped(self, stage: str, *, reads: Iterable[Slot[Any]], writes: Iterable[Slot[Any]]) -> View:
        """The context as one stage may see it."""
        return View(self, stage, frozenset(slot.name for slot in reads), frozenset(slot.name for slot in writes))


@dataclass(frozen=True, slots=True)
class View:
    """The context, restricted to what one stage declared."""

    _context: Context
    _stage: str
    _reads: frozenset[str]
    _writes: frozenset[str]

    def __getitem__(self, slot: Slot[T]) -> T:
        if slot.name not in self._reads:
            raise SlotError(f"stage {self._stage!r} reads {slot.name!r} without declaring it; add it to `reads`")
        return self._context.read(slot)

    def get(self, slot: Slot[T]) -> T | None:
        """The slot's value, None while it is empty."""
        if slot.name not in self._reads:
            raise SlotError(f"stage {self._stage!r} reads {slot.name!r} without declaring it; add it to `may_read`")
        return self._context.read(slot) if self._context.holds(slot) else None

    def __setitem__(self, slot: Slot[T], value: T) -> None:
        if slot.name not in self._writes:
            raise SlotError(f"stage {self._stage!r} writes {slot.name!r} without declaring it; add it to `writes`")
        self._context.write(slot, value)
