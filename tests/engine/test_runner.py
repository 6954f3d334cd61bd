from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pipeline.engine.children import Children
from pipeline.engine.context import Context, Slot, View
from pipeline.engine.errors import HostError, StageError, VerifyError
from pipeline.engine.events import Event, Events, Kind
from pipeline.engine.graph import build_graph
from pipeline.engine.report import exit_code
from pipeline.engine.runner import OnError, Outcome, Services, Status, run
from pipeline.engine.stage import Resource, Result, Skipped, Stage

TIMEOUT_S = 10
WORK: Slot[int] = Slot("work")
Do = Callable[[View], Result | Skipped]


@dataclass(kw_only=True)
class Acting(Stage):
    """Does what the test gives it."""

    do: Do

    def run(self, ctx: View) -> Result | Skipped:
        return self.do(ctx)


def stage(
    do: Do,
    *,
    resource: Resource = Resource.CORES,
    reads: Iterable[Slot[int]] = (),
    writes: Iterable[Slot[int]] = (),
) -> Stage:
    return type("Declared", (Acting,), {"resource": resource, "reads": tuple(reads), "writes": tuple(writes)})(do=do)


@dataclass(frozen=True)
class Counted:
    """An allocation counter that stands still."""

    allocated_bytes: int | None


@dataclass
class Bench:
    """Everything a run needs, and every event it emitted."""

    children: Children = field(default_factory=Children)
    seen: list[Event] = field(default_factory=list[Event])
    listeners: list[Callable[[Event], None]] = field(default_factory=list[Callable[[Event], None]])
    allocated_bytes: int | None = None

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

    @contextmanager
    def _meter(self) -> Generator[Counted]:
        yield Counted(self.allocated_bytes)


@pytest.fixture
def bench() -> Bench:
    return Bench()


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


def test_every_stage_starts_after_its_needs_have_finished(bench: Bench):
    stages = {name: stage(fine) for name in ("export", "plan", "sweep", "tune")}
    needs = {"export": ["sweep", "tune"], "plan": [], "sweep": ["plan"], "tune": ["plan"]}
    outcomes = bench.run(stages, needs)
    assert set(statuses(outcomes).values()) == {Status.OK}
    told = [(event.kind, event.stage) for event in bench.seen]
    for name, wanted in needs.items():
        for need in wanted:
            assert told.index((Kind.FINISHED, need)) < told.index((Kind.STARTED, name))


def test_outcomes_come_back_in_the_order_of_the_graph(bench: Bench):
    stages = {name: stage(fine) for name in ("c", "b", "a")}
    outcomes = bench.run(stages, {"c": ["b"], "b": ["a"], "a": []})
    assert [outcome.name for outcome in outcomes] == ["a", "b", "c"]


def test_a_value_travels_from_one_stage_to_the_next(bench: Bench):
    def write(ctx: View) -> Result:
        ctx[WORK] = 42
        return Result("")

    stages = {
        "write": stage(write, writes=[WORK]),
        "read": stage(lambda ctx: Result(str(ctx[WORK])), reads=[WORK]),
    }
    outcomes = bench.run(stages, {"write": [], "read": ["write"]})
    assert outcomes[1].reason == "42"


def test_an_outcome_carries_seconds_bytes_summary_and_figures(bench: Bench):
    bench.allocated_bytes = 512
    (outcome,) = bench.run({"plan": stage(lambda ctx: Result("two", {"problems": 2}))}, {"plan": []})
    assert outcome.seconds is not None
    assert outcome.seconds >= 0
    assert (outcome.allocated_bytes, outcome.reason, outcome.figures) == (512, "two", {"problems": 2})
    assert bench.finished()["plan"].data["allocated_bytes"] == 512


def test_device_stages_never_overlap_while_a_cores_stage_runs_beside(bench: Bench):
    device_ran = threading.Event()
    cores_ran = threading.Event()
    lock = threading.Lock()
    holding = 0
    most = list[int]()

    def hold_device(ctx: View) -> Result:
        nonlocal holding
        with lock:
            holding += 1
            most.append(holding)
        device_ran.set()
        await_or_fail(cores_ran)
        # Long enough for a second device stage to come in, if the runner let it.
        time.sleep(0.1)
        with lock:
            holding -= 1
        return Result("")

    def use_cores(ctx: View) -> Result:
        cores_ran.set()
        await_or_fail(device_ran)
        return Result("")

    stages = {name: stage(hold_device, resource=Resource.DEVICE) for name in ("tune", "verify", "measure")}
    stages["sweep"] = stage(use_cores)
    outcomes = bench.run(stages, {name: [] for name in stages})
    assert set(statuses(outcomes).values()) == {Status.OK}
    assert most == [1, 1, 1]


def test_stages_that_use_only_cores_run_side_by_side(bench: Bench):
    together = threading.Barrier(3, timeout=TIMEOUT_S)

    def meet(ctx: View) -> Result:
        together.wait()
        return Result("")

    outcomes = bench.run({name: stage(meet) for name in "abc"}, {name: [] for name in "abc"})
    assert set(statuses(outcomes).values()) == {Status.OK}


def test_a_failure_blocks_its_descendants_and_independent_branches_finish(bench: Bench):
    stages = {name: stage(fine) for name in ("plan", "publish", "export", "tune", "verify")}
    stages["sweep"] = stage(failing(StageError("nvcc rejected 1 of 2 kernels")))
    needs = {
        "plan": [],
        "sweep": ["plan"],
        "publish": ["sweep"],
        "export": ["publish"],
        "tune": ["plan"],
        "verify": ["tune"],
    }
    outcomes = {outcome.name: outcome for outcome in bench.run(stages, needs)}
    assert outcomes["sweep"].status is Status.FAILED
    assert outcomes["sweep"].reason == "nvcc rejected 1 of 2 kernels"
    assert outcomes["publish"].status is Status.BLOCKED
    assert outcomes["publish"].reason == "sweep failed"
    assert outcomes["export"].status is Status.BLOCKED
    assert outcomes["export"].reason == "publish blocked"
    assert outcomes["export"].seconds is None
    assert outcomes["tune"].status is outcomes["verify"].status is Status.OK
    assert "publish" not in bench.started()
    assert bench.finished()["publish"].data["status"] == "blocked"
    assert bench.finished()["publish"].data["reason"] == "sweep failed"


@pytest.mark.parametrize(("on_error", "expected"), [(OnError.stop, Status.BLOCKED), (OnError.finish, Status.OK)])
def test_on_error_decides_whether_an_independent_stage_still_starts(bench: Bench, on_error: OnError, expected: Status):
    stages = {
        # One holds the device, so the other is decided after the failure is known.
        "first": stage(failing(HostError("no device")), resource=Resource.DEVICE),
        "second": stage(fine, resource=Resource.DEVICE),
    }
    outcomes = bench.run(stages, {"first": [], "second": []}, on_error)
    assert statuses(outcomes) == {"first": Status.FAILED, "second": expected}


def test_on_error_stop_says_so_and_lets_a_running_stage_end(bench: Bench):
    failed = threading.Event()
    running = threading.Event()
    bench.listeners.append(lambda event: failed.set() if event.kind is Kind.FINISHED and event.stage == "bad" else None)

    def fail_beside_the_other(ctx: View) -> Result:
        await_or_fail(running)
        raise StageError("bad")

    def outlast_the_failure(ctx: View) -> Result:
        running.set()
        await_or_fail(failed)
        time.sleep(0.1)
        return Result("ended")

    stages = {"bad": stage(fail_beside_the_other), "long": stage(outlast_the_failure), "next": stage(fine)}
    outcomes = {
        outcome.name: outcome for outcome in bench.run(stages, {"bad": [], "long": [], "next": ["long"]}, OnError.stop)
    }
    assert outcomes["long"].status is Status.OK
    assert outcomes["next"].status is Status.BLOCKED
    assert outcomes["next"].reason == "on_error=stop"


def test_a_skipped_stage_keeps_its_reason_and_figures_and_blocks_nothing(bench: Bench):
    skip = Skipped("the server tunes nothing", {"tactics": 0})
    outcomes = bench.run({"tune": stage(lambda ctx: skip), "verify": stage(fine)}, {"tune": [], "verify": ["tune"]})
    assert statuses(outcomes) == {"tune": Status.SKIPPED, "verify": Status.OK}
    assert outcomes[0].reason == "the server tunes nothing"
    assert outcomes[0].figures == {"tactics": 0}
    assert exit_code(outcomes) == 0


def test_the_figures_of_a_stage_error_are_kept(bench: Bench):
    error = VerifyError("a guard is broken", figures={"guards_ok": False})
    (outcome,) = bench.run({"verify": stage(failing(error))}, {"verify": []})
    assert outcome.status is Status.FAILED
    assert outcome.figures == {"guards_ok": False}
    assert outcome.error is error


def test_a_stage_outside_its_contract_fails_and_the_run_reports(bench: Bench):
    def write(ctx: View) -> Result:
        ctx[WORK] = 1
        return Result("")

    (outcome,) = bench.run({"plan": stage(write)}, {"plan": []})
    assert outcome.status is Status.FAILED
    assert outcome.reason is not None
    assert "writes 'work' without declaring it" in outcome.reason


def test_an_exception_that_is_a_defect_is_raised_with_a_note_that_names_the_stage(bench: Bench):
    with pytest.raises(ZeroDivisionError) as raised:
        bench.run({"align": stage(lambda ctx: Result(str(1 // 0)))}, {"align": []})
    assert "while running stage 'align'" in raised.value.__notes__


def test_a_stage_that_ends_by_a_defect_is_not_told_as_ok(bench: Bench):
    with pytest.raises(ZeroDivisionError):
        bench.run({"align": stage(lambda ctx: Result(str(1 // 0)))}, {"align": []})
    assert bench.finished()["align"].data["status"] != "ok"


def test_a_defect_is_raised_after_the_running_stages_have_ended(bench: Bench):
    running = threading.Event()
    broken = threading.Event()
    ended = list[str]()

    def break_down(ctx: View) -> Result:
        await_or_fail(running)
        broken.set()
        raise ZeroDivisionError

    def go_on(ctx: View) -> Result:
        running.set()
        await_or_fail(broken)
        time.sleep(0.1)
        ended.append("sweep")
        return Result("")

    with pytest.raises(ZeroDivisionError):
        bench.run({"align": stage(break_down), "sweep": stage(go_on)}, {"align": [], "sweep": []})
    assert ended == ["sweep"]


def test_an_interrupt_ends_the_child_of_a_running_stage_and_starts_nothing_more(bench: Bench, tmp_path: Path):
    def stop_at_first_progress(event: Event) -> None:
        if event.kind is Kind.PROGRESS:
            bench.children.stop()

    def compile_for_a_minute(ctx: View) -> Result:
        child = bench.children.start(
            ["sleep", "60"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, stdout=subprocess.DEVNULL, stderr=None
        )
        bench.events.emit(Kind.PROGRESS, "sweep", what="kernels", done=0, total=1)
        bench.children.wait(child)
        return Result("not reached")

    bench.listeners.append(stop_at_first_progress)
    started_s = time.monotonic()
    outcomes = bench.run(
        {"sweep": stage(compile_for_a_minute), "verify": stage(fine)}, {"sweep": [], "verify": ["sweep"]}
    )
    assert time.monotonic() - started_s < TIMEOUT_S
    assert statuses(outcomes) == {"sweep": Status.INTERRUPTED, "verify": Status.INTERRUPTED}
    assert bench.started() == ["sweep"]
    assert exit_code(outcomes) == 130


def test_a_stage_that_finished_before_the_interrupt_keeps_its_result(bench: Bench):
    def finish_and_be_interrupted(ctx: View) -> Result:
        bench.children.stop()
        return Result("done")

    outcomes = bench.run(
        {"plan": stage(finish_and_be_interrupted), "sweep": stage(fine)}, {"plan": [], "sweep": ["plan"]}
    )
    assert statuses(outcomes) == {"plan": Status.OK, "sweep": Status.INTERRUPTED}
    assert exit_code(outcomes) == 130
