"""What happens in a run, as data: log, display, events.jsonl and timeline.json all listen to the same events."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Kind(StrEnum):
    """What an event tells."""

    STARTED = "started"
    PROGRESS = "progress"
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a stage, `at_s` seconds after the run began (monotonic)."""

    kind: Kind
    stage: str
    at_s: float
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])


Listener = Callable[[Event], None]


class Events:
    """Hands every event to every listener, one at a time."""

    def __init__(self, *listeners: Listener) -> None:
        self._listeners = listeners
        self._lock = threading.Lock()
        self._started_s = time.monotonic()

    def emit(self, kind: Kind, stage: str, **data: Any) -> None:
        """Tell everyone now."""
        with self._lock:
            event = Event(kind, stage, time.monotonic() - self._started_s, data)
            for listener in self._listeners:
                listener(event)


@dataclass(frozen=True, slots=True)
class Reporter:
    """How a stage tells of its progress while it runs."""

    events: Events
    stage: str

    def __call__(self, what: str, done: int, total: int) -> None:
        """`done` of `total` of `what` are finished."""
        self.events.emit(Kind.PROGRESS, self.stage, what=what, done=done, total=total)

    def counting(self, what: str) -> Callable[[int, int], None]:
        """The same for one thing that is counted."""
        return lambda done, total: self(what, done, total)


class JsonLines:
    """Writes events.jsonl, one event a line, flushed at once."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w")

    def __call__(self, event: Event) -> None:
        record = {"at_s": round(event.at_s, 4), "kind": event.kind.value, "stage": event.stage, **event.data}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self) -> None:
        """No event comes after this."""
        self._file.close()


class Timeline:
    """Collects a Chrome trace (chrome://tracing, ui.perfetto.dev): a bar a stage, a counter a progress."""

    def __init__(self) -> None:
        self._records: list[dict[str, Any]] = []
        self._started_s: dict[str, float] = {}
        self._rows: dict[str, int] = {}

    def __call__(self, event: Event) -> None:
        row = self._rows.setdefault(event.stage, len(self._rows))
        common = {"name": event.stage, "pid": 1, "tid": row}
        if event.kind is Kind.STARTED:
            self._started_s[event.stage] = event.at_s
        elif event.kind is Kind.PROGRESS:
            args = {event.data["what"]: event.data["done"]}
            self._records.append({**common, "ph": "C", "ts": event.at_s * 1e6, "args": args})
        elif event.stage in self._started_s:
            start_s = self._started_s[event.stage]
            bar = {"ph": "X", "ts": start_s * 1e6, "dur": (event.at_s - start_s) * 1e6, "args": dict(event.data)}
            self._records.append({**common, **bar})

    def write(self, path: Path) -> None:
        """Save what was collected."""
        path.write_text(json.dumps({"traceEvents": self._records, "displayTimeUnit": "ms"}))
