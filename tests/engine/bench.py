"""Run a graph of stages that do what a test gives them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pipeline.engine.children import Children
from pipeline.engine.context import Context, View
from pipeline.engine.events import Event, Events, Kind
from pipeline.engine.graph import build_graph
from pipeline.engine.runner import OnError, Outcome, Services, Status, run
from pipeline.engine.stage import Result, Skipped, Stage

TIMEOUT_S = 10
Do = Callable[[View], Result | Skipped]


@dataclass(kw_only=True)
class Acting(Stage):
    """Does what the test gives it."""

    do: Do

    def run(self, ctx: View) -> Result | Skipped:
        return self.do(ctx)


def stage(do: Do, **contract: object) -> Stage:
    """A stage with this contract: reads, may_read, writes, resource, allocates_nothing."""
    assert all(hasattr(Stage, name) for name in contract), f"a Stage has no such class variable: {contract}"
    return type("Declared", (Acting,), contract)(do=do)


class Counted(threading.local):
    """An allocation counter of each stage: every stage runs in a thread of its own."""

    allocated_bytes: int | None = None


@dataclass
class Bench:
    """Everything a run needs, and every event it emitted; `counted` is set by a stage that allocates."""

    children: Children = field(default_factory=Children)
    seen: list[Event] = field(default_factory=list[Event])
    listeners: list[Callable[[Event], None]] = field(default_factory=list[Callable[[Event], None]])
    counted: Counted = field(default_factory=Counted)

    def run(
        self, stages: Mapping[str, Stage], needs: Mapping[str, Sequence[str]], on_error: OnError = OnError.finish
    ) -> list[Outcome]:
        graph = build_graph(stages, needs, seeded=())
        self.events = Events(self.seen.append, *self.listeners)
        services = Services(self.children, self.events, self._meter)
        return run(graph, stages, Context(), services, on_error=on_error)

    def finished(self) -> dict[str, Event]:
        return {event.stage: event for event in self.seen if event.kind is Kind.FINISHED}

    def started(self) -> list[str]:
        return [event.stage for event in self.seen if event.kind is Kind.STARTED]

    def when_finished(self, name: str) -> threading.Event:
        """Set as soon as that stage has ended."""
        ended = threading.Event()
        self.listeners.append(
            lambda event: ended.set() if event.kind is Kind.FINISHED and event.stage == name else None
        )
        return ended

    @contextmanager
    def _meter(self) -> Generator[Counted]:
        self.counted.allocated_bytes = None
        yield self.counted


def fine(ctx: View) -> Result:
    return Result("fine")


def failing(error: Exception) -> Do:
    def fail(ctx: View) -> Result:
        raise error

    return fail


def statuses(outcomes: Sequence[Outcome]) -> dict[str, Status]:
    return {outcome.name: outcome.status for outcome in outcomes}


def await_or_fail(event: threading.Event) -> None:
    if not event.wait(TIMEOUT_S):
        raise TimeoutError("the stage that this one runs beside never came")
