"""Progress of a run: bars on a terminal, a line every ten seconds elsewhere."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pipeline.engine.events import Event, Kind

log = logging.getLogger("preheat")
HEARTBEAT_S = 10.0


class TerminalDisplay:
    """One bar for each thing that is counted, with elapsed and remaining time."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<26}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def __call__(self, event: Event) -> None:
        if event.kind is Kind.PROGRESS:
            name = f"{event.stage}: {event.data['what']}"
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name)
            self._progress.update(self._tasks[name], completed=event.data["done"], total=event.data["total"])
        elif event.kind is Kind.FINISHED:
            self._progress.console.print(finished_line(event), markup=False, highlight=False, emoji=False)

    def close(self) -> None:
        """Leave the last state on the screen."""
        self._progress.stop()


class LogDisplay:
    """A log line at each stage's end, and while stages run a heartbeat with their latest counts."""

    def __init__(self) -> None:
        self._latest: dict[str, str] = {}
        self._started_s = time.monotonic()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._thread.start()

    def __call__(self, event: Event) -> None:
        if event.kind is Kind.STARTED:
            self._latest[event.stage] = "running"
        elif event.kind is Kind.PROGRESS:
            self._latest[event.stage] = f"{event.data['done']}/{event.data['total']} {event.data['what']}"
        else:
            self._latest.pop(event.stage, None)
            log.info(finished_line(event))

    def close(self) -> None:
        """Stop the heartbeat."""
        self._closed.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._closed.wait(HEARTBEAT_S):
            running = "; ".join(f"{stage} {state}" for stage, state in sorted(self._latest.items()))
            if running:
                log.info("%6.0f s  %s", time.monotonic() - self._started_s, running)


def finished_line(event: Event) -> str:
    """One aligned line for a stage that ended."""
    data: dict[str, Any] = dict(event.data)
    first_line = (str(data.get("reason") or "").splitlines() or [""])[0]
    return f"{event.stage:<10} {data.get('status', ''):<8} {event.at_s:7.1f} s  {first_line}"
