"""How a run ends when a stage fails, breaks by a defect, or is interrupted."""

from __future__ import annotations

import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from pipeline.engine.context import View
from pipeline.engine.errors import HostError, IncompleteError, StageError, VerifyError
from pipeline.engine.events import Event, Kind
from pipeline.engine.figures import Figures
from pipeline.engine.report import exit_code
from pipeline.engine.runner import OnError, Status
from pipeline.engine.stage import Resource, Result
from tests.engine.bench import TIMEOUT_S, Bench, await_or_fail, failing, fine, stage, statuses


@dataclass(kw_only=True)
class Checked(Figures):
    """What a stage of these tests measures before it fails."""

    section: ClassVar[str] = "checked"
    guards_ok: bool | None = None


@pytest.fixture
def bench() -> Bench:
    return Bench()


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


@pytest.mark.parametrize("on_error", list(OnError))
def test_a_stage_that_is_only_incomplete_blocks_nothing_and_says_so_at_the_end(bench: Bench, on_error: OnError):
    error = IncompleteError("one thing is missing")
    stages = {"ask": stage(lambda ctx: Result("asked", incomplete=error)), "sweep": stage(fine)}
    asked, swept = bench.run(stages, {"ask": [], "sweep": ["ask"]}, on_error)
    assert (asked.status, asked.reason, asked.error) == (Status.INCOMPLETE, "asked", error)
    assert swept.status is Status.OK
    assert exit_code([asked, swept]) == 6


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
    failed = bench.when_finished("bad")
    running = threading.Event()

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


def test_the_figures_of_a_stage_error_are_kept(bench: Bench):
    error = VerifyError("a guard is broken", figures=(Checked(guards_ok=False),))
    (outcome,) = bench.run({"verify": stage(failing(error))}, {"verify": []})
    assert outcome.status is Status.FAILED
    assert outcome.figures == (Checked(guards_ok=False),)
    assert outcome.error is error


def test_an_exception_that_is_a_defect_is_raised_with_a_note_that_names_the_stage(bench: Bench):
    with pytest.raises(ZeroDivisionError) as raised:
        bench.run({"align": stage(lambda ctx: Result(str(1 // 0)))}, {"align": []})
    assert "while running stage 'align'" in raised.value.__notes__


def test_a_stage_that_ends_by_a_defect_is_not_reported_as_ok(bench: Bench):
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
            ["sleep", "60"],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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
