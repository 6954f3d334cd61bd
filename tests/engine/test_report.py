from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pipeline.engine.context import View
from pipeline.engine.errors import (
    CapacityError,
    ConfigError,
    HostError,
    IncompleteError,
    Interrupted,
    NoRulesError,
    SlotError,
    StageError,
    VerifyError,
    WarmupError,
    WrongRuleError,
)
from pipeline.engine.figures import Figures
from pipeline.engine.report import build_report, exit_code, to_json, write_atomically
from pipeline.engine.runner import Outcome, Status
from pipeline.engine.stage import Result, Stage


@dataclass(kw_only=True)
class SweepFigures(Figures):
    """A section of its own."""

    section: ClassVar[str] = "sweep"
    keys: int | None = None
    compiled: int | None = None
    farm_wall_s: float | None = None


@dataclass(kw_only=True)
class ArenaFigures(Figures):
    """What is known when memory is reserved."""

    section: ClassVar[str] = "buffers"
    arena_bytes: int | None = None


@dataclass(kw_only=True)
class MemoryFigures(Figures):
    """What only a later stage can measure of the same memory."""

    section: ClassVar[str] = "buffers"
    allocations_after: int | None = None
    not_in_arena: dict[str, int] | None = None


@dataclass(kw_only=True)
class VerifyFigures(Figures):
    """What was checked."""

    section: ClassVar[str] = "verify"
    guards_ok: bool | None = None


@dataclass(kw_only=True)
class Idle(Stage):
    """Stands for the stage that an outcome belongs to."""

    def run(self, ctx: View) -> Result:
        return Result("")


@dataclass(kw_only=True)
class Sweep(Idle):
    """Reports into a section of its own."""

    reports = (SweepFigures,)


@dataclass(kw_only=True)
class Allocate(Idle):
    """Reports into a section that a later stage completes."""

    reports = (ArenaFigures,)


@dataclass(kw_only=True)
class Verify(Idle):
    """Measures something for an earlier stage's section."""

    reports = (VerifyFigures, MemoryFigures)


def failed(error: WarmupError, name: str = "sweep") -> Outcome:
    return Outcome(name, Status.FAILED, reason=str(error), error=error)


def report_of(*outcomes: Outcome) -> dict[str, Any]:
    stages: dict[str, Stage] = {"sweep": Sweep(), "allocate": Allocate(), "verify": Verify(), "align": Idle()}
    return build_report(outcomes, stages)


@pytest.mark.parametrize(
    ("outcome", "code", "status"),
    [
        (Outcome("sweep", Status.OK), 0, "ok"),
        (Outcome("sweep", Status.SKIPPED, reason="nothing to do"), 0, "ok"),
        (failed(ConfigError("wrong")), 2, "failed"),
        (failed(NoRulesError("an unknown model", subjects=["it"])), 2, "failed"),
        (failed(HostError("no nvcc")), 3, "failed"),
        (failed(StageError("nvcc rejected a kernel")), 4, "failed"),
        (failed(SlotError("undeclared")), 4, "failed"),
        (failed(CapacityError("too many rows")), 4, "failed"),
        (failed(VerifyError("a stub is left")), 5, "failed"),
        (failed(IncompleteError("one problem cannot be launched")), 6, "incomplete"),
        (Outcome("sweep", Status.INCOMPLETE, error=WrongRuleError("a rule is wrong")), 6, "incomplete"),
        (Outcome("sweep", Status.BLOCKED, reason="on_error=stop"), 6, "incomplete"),
        (Outcome("sweep", Status.INTERRUPTED, error=Interrupted("stopped")), 130, "incomplete"),
        (Outcome("sweep", Status.INTERRUPTED, reason="the run was interrupted"), 130, "incomplete"),
    ],
    ids=lambda value: value.status.value if isinstance(value, Outcome) else str(value),
)
def test_every_way_a_stage_ends_has_its_exit_code_and_status(outcome: Outcome, code: int, status: str):
    assert exit_code([outcome]) == code
    report = report_of(outcome)
    assert (report["exit_code"], report["status"]) == (code, status)


def test_an_interrupt_outweighs_a_failure():
    outcomes = [failed(StageError("killed")), Outcome("verify", Status.INTERRUPTED)]
    assert exit_code(outcomes) == 130


def test_the_first_failure_gives_the_code_and_outweighs_what_it_blocked():
    outcomes = [
        Outcome("align", Status.BLOCKED),
        failed(HostError("no nvcc")),
        failed(VerifyError("bad"), name="verify"),
    ]
    assert exit_code(outcomes) == 3


def test_a_later_failure_outweighs_a_stage_that_was_only_incomplete():
    outcomes = [
        Outcome("sweep", Status.INCOMPLETE, error=WrongRuleError("a rule is wrong")),
        failed(VerifyError("bad"), name="verify"),
    ]
    assert exit_code(outcomes) == 5


def test_each_stage_has_an_entry_with_everything_known_about_it():
    report = report_of(
        Outcome("align", Status.OK, seconds=1.23456, reason="8 requests", allocated_bytes=0),
        Outcome("sweep", Status.BLOCKED, reason="align failed"),
    )
    assert report["stages"] == [
        {"name": "align", "status": "ok", "seconds": 1.235, "reason": "8 requests", "bytes_allocated": 0},
        {"name": "sweep", "status": "blocked", "seconds": None, "reason": "align failed", "bytes_allocated": None},
    ]


def test_figures_that_were_not_measured_are_null_and_never_zero():
    report = report_of(Outcome("sweep", Status.FAILED, figures=(SweepFigures(keys=7),), error=StageError("no")))
    assert report["sweep"] == {"keys": 7, "compiled": None, "farm_wall_s": None}
    assert '"farm_wall_s": null' in to_json(report)


def test_a_measured_zero_stays_zero():
    assert report_of(Outcome("sweep", Status.OK, figures=(SweepFigures(compiled=0),)))["sweep"]["compiled"] == 0


def test_a_stage_that_never_ran_has_its_section_with_nulls():
    assert report_of(Outcome("verify", Status.BLOCKED))["verify"] == {"guards_ok": None}


def test_a_stage_without_a_section_adds_none():
    assert set(report_of(Outcome("align", Status.OK))) == {"status", "exit_code", "stages"}


ARENA = Outcome("allocate", Status.OK, figures=(ArenaFigures(arena_bytes=1024),))
CHECKED = (VerifyFigures(guards_ok=True), MemoryFigures(allocations_after=4, not_in_arena={"cublas": 8}))


@pytest.mark.parametrize("status", [Status.OK, Status.FAILED, Status.SKIPPED], ids=str)
def test_two_kinds_of_figures_share_one_section_whichever_stage_comes_first(status: Status):
    checked = Outcome("verify", status, figures=CHECKED)
    for outcomes in ((ARENA, checked), (checked, ARENA)):
        report = report_of(*outcomes)
        assert report["buffers"] == {"arena_bytes": 1024, "allocations_after": 4, "not_in_arena": {"cublas": 8}}
        assert report["verify"] == {"guards_ok": True}


def test_a_section_keeps_its_figures_where_the_stage_of_the_other_kind_never_ran():
    blocked = Outcome("verify", Status.BLOCKED, reason="sweep failed")
    for outcomes in ((ARENA, blocked), (blocked, ARENA)):
        report = report_of(*outcomes)
        assert report["buffers"] == {"arena_bytes": 1024, "allocations_after": None, "not_in_arena": None}
        assert report["verify"] == {"guards_ok": None}


def test_what_a_second_stage_did_not_measure_does_not_erase_what_the_first_one_did():
    stages: dict[str, Stage] = {"sweep": Sweep(), "published": Sweep()}
    outcomes = [
        Outcome("sweep", Status.OK, figures=(SweepFigures(keys=7, compiled=0),)),
        Outcome("published", Status.OK, figures=(SweepFigures(keys=9),)),
    ]
    assert build_report(outcomes, stages)["sweep"] == {"keys": 9, "compiled": 0, "farm_wall_s": None}


def test_the_figures_of_a_stage_that_failed_count():
    error = VerifyError("a guard is broken", figures=(VerifyFigures(guards_ok=False),))
    report = report_of(Outcome("verify", Status.FAILED, figures=error.figures, error=error))
    assert report["verify"] == {"guards_ok": False}
    assert (report["status"], report["exit_code"]) == ("failed", 5)


def test_json_ends_with_a_newline_and_reads_back():
    text = to_json({"status": "ok", "sweep": {"keys": None}})
    assert text.endswith("}\n")
    assert json.loads(text) == {"status": "ok", "sweep": {"keys": None}}


@contextmanager
def umask(mask: int) -> Generator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o000])
def test_a_written_file_can_be_read_by_every_user_and_nothing_else_is_left(tmp_path: Path, mask: int):
    path = tmp_path / "out" / "report.json"
    with umask(mask):
        write_atomically(path, "{}\n")
    assert path.read_text() == "{}\n"
    assert path.stat().st_mode & 0o7777 == 0o644
    assert list(path.parent.iterdir()) == [path]


def test_a_file_is_replaced_whole_and_not_written_into(tmp_path: Path):
    path = tmp_path / "report.json"
    write_atomically(path, "old and long\n")
    with path.open() as opened_before:
        write_atomically(path, "new\n")
        assert opened_before.read() == "old and long\n"
    assert path.read_text() == "new\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_text_and_no_temporary_file(tmp_path: Path):
    path = tmp_path / "report.json"
    write_atomically(path, "old\n")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "a lone surrogate cannot be encoded: \udc80")
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]
