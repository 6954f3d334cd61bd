"""Walk the graph: stages that hold the device one at a time, stages that use only cores beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Any, Protocol

import networkx as nx

from pipeline.engine.children import Children
from pipeline.engine.context import Context, Ended, View
from pipeline.engine.errors import Interrupted, StageError, WarmupError
from pipeline.engine.events import Events, Kind
from pipeline.engine.figures import Figures
from pipeline.engine.graph import order
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.engine.tables import Table


class Status(StrEnum):
    """How a stage ended."""

    OK = "ok"
    SKIPPED = "skipped"
    INCOMPLETE = "incomplete"
    FAILED = "failed"
    BLOCKED = "blocked"
    INTERRUPTED = "interrupted"


class OnError(Enum):
    """What a failed stage does to stages that do not depend on it."""

    finish = "finish"
    """They run on."""
    stop = "stop"
    """They are not started."""


class Measured(Protocol):
    """Bytes that a stage allocated; None while or where that cannot be measured."""

    @property
    def allocated_bytes(self) -> int | None:
        """The count so far."""
        ...


Meter = Callable[[], AbstractContextManager[Measured]]


@dataclass(frozen=True, slots=True)
class Services:
    """What a run uses beside its stages: child processes, listeners, and the allocation counter of each stage."""

    children: Children
    events: Events
    meter: Meter


@dataclass(slots=True)
class Outcome:
    """How one stage ended and what it reports."""

    name: str
    status: Status
    seconds: float | None = None
    reason: str | None = None
    allocated_bytes: int | None = None
    figures: tuple[Figures, ...] = ()
    tables: tuple[Table, ...] = ()
    error: WarmupError | None = None


def run(
    graph: nx.DiGraph[str],
    stages: Mapping[str, Stage],
    context: Context,
    services: Services,
    *,
    on_error: OnError = OnError.finish,
) -> list[Outcome]:
    """Run every stage whose needs were met; outcomes come back in the graph's order.

    A WarmupError ends its stage and blocks the stages after it. Any other exception is a defect: it is raised here
    after the running stages have ended.
    """
    outcomes: dict[str, Outcome] = {}
    running: dict[Future[Outcome], str] = {}
    waiting = order(graph)
    with ThreadPoolExecutor(max_workers=max(1, len(waiting)), thread_name_prefix="stage") as pool:
        while waiting or running:
            for name in [name for name in waiting if _decided(name, graph, outcomes)]:
                if services.children.stopped:
                    outcomes[name] = _not_run(name, Status.INTERRUPTED, "the run was interrupted", services.events)
                elif on_error is OnError.stop and _any_failed(outcomes):
                    outcomes[name] = _not_run(name, Status.BLOCKED, "on_error=stop", services.events)
                elif reason := _blocked_by(name, graph, outcomes):
                    outcomes[name] = _not_run(name, Status.BLOCKED, reason, services.events)
                elif not _device_is_taken(name, stages, running.values()):
                    view = _view_of(name, graph, stages, outcomes, context)
                    running[pool.submit(_run_one, name, stages[name], view, services)] = name
                else:
                    continue
                waiting.remove(name)
            if running:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in done:
                    outcomes[running.pop(future)] = future.result()
    return [outcomes[name] for name in order(graph)]


def _not_run(name: str, status: Status, reason: str, events: Events) -> Outcome:
    events.emit(Kind.FINISHED, name, status=status.value, reason=reason)
    return Outcome(name, status, reason=reason)


def _view_of(
    name: str,
    graph: nx.DiGraph[str],
    stages: Mapping[str, Stage],
    outcomes: Mapping[str, Outcome],
    context: Context,
) -> View:
    """What the stage may see; all of its ancestors have ended."""
    stage = stages[name]
    ancestors = {
        other: Ended(stages[other].allocates_nothing, outcomes[other].allocated_bytes)
        for other in nx.ancestors(graph, name)
    }
    return context.scoped(name, reads=(*stage.reads, *stage.may_read), writes=stage.writes, ancestors=ancestors)


def _run_one(name: str, stage: Stage, view: View, services: Services) -> Outcome:
    services.events.emit(Kind.STARTED, name)
    started_s = time.monotonic()
    outcome = Outcome(name, Status.OK)
    try:
        with services.meter() as measured:
            result = stage.run(view)
        outcome.allocated_bytes = measured.allocated_bytes
        outcome.figures = result.figures
        outcome.reason = result.reason if isinstance(result, Skipped) else result.summary
        outcome.status = Status.SKIPPED
        if isinstance(result, Result):
            outcome.tables = result.tables
            outcome.error = result.incomplete
            outcome.status = Status.OK if result.incomplete is None else Status.INCOMPLETE
    except WarmupError as error:
        outcome.status = Status.INTERRUPTED if isinstance(error, Interrupted) else Status.FAILED
        outcome.reason = str(error)
        outcome.error = error
        outcome.figures = error.figures if isinstance(error, StageError) else ()
    except Exception as error:
        outcome.status = Status.FAILED
        outcome.reason = f"a defect of Preheat: {type(error).__name__}: {error}"
        error.add_note(f"while running stage {name!r}")
        raise
    finally:
        outcome.seconds = time.monotonic() - started_s
        services.events.emit(
            Kind.FINISHED,
            name,
            status=outcome.status.value,
            reason=outcome.reason,
            allocated_bytes=outcome.allocated_bytes,
        )
    return outcome


def _decided(name: str, graph: nx.DiGraph[str], outcomes: Mapping[str, Outcome]) -> bool:
    return all(need in outcomes for need in graph.predecessors(name))


def _blocked_by(name: str, graph: nx.DiGraph[str], outcomes: Mapping[str, Outcome]) -> str | None:
    for need in graph.predecessors(name):
        if outcomes[need].status not in (Status.OK, Status.SKIPPED, Status.INCOMPLETE):
            return f"{need} {outcomes[need].status}"
    return None


def _any_failed(outcomes: Mapping[str, Outcome]) -> bool:
    return any(outcome.status is Status.FAILED for outcome in outcomes.values())


def _device_is_taken(name: str, stages: Mapping[str, Stage], running: Any) -> bool:
    device = Resource.DEVICE
    return stages[name].resource is device and any(stages[other].resource is device for other in running)
