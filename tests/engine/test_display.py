from __future__ import annotations

import io
import logging
import threading

import pytest
from rich.console import Console

from pipeline.engine.display import LogDisplay, TerminalDisplay, finished_line
from pipeline.engine.events import Event, Kind

STARTED = Event(Kind.STARTED, "sweep", 1.0)
PROGRESS = Event(Kind.PROGRESS, "sweep", 2.0, {"what": "kernels", "done": 3, "total": 10})
FINISHED = Event(Kind.FINISHED, "sweep", 41.76, {"status": "failed", "reason": "nvcc rejected [1]\nsecond line"})


def test_the_line_of_a_finished_stage_names_status_time_and_the_first_line_of_the_reason():
    assert finished_line(FINISHED).split() == ["sweep", "failed", "41.8", "s", "nvcc", "rejected", "[1]"]


def test_a_stage_without_a_reason_has_a_line_too():
    line = finished_line(Event(Kind.FINISHED, "plan", 0.2, {"status": "ok", "reason": None}))
    assert line.split() == ["plan", "ok", "0.2", "s"]


def test_the_lines_of_several_stages_are_aligned():
    lines = [
        finished_line(Event(Kind.FINISHED, stage, at_s, {"status": status, "reason": "why"}))
        for stage, status, at_s in (("plan", "ok", 0.2), ("autotune", "skipped", 123.4))
    ]
    assert lines[0].index(" s ") == lines[1].index(" s ")
    assert lines[0].index("why") == lines[1].index("why")


def test_without_a_terminal_each_finished_stage_is_one_log_line(caplog: pytest.LogCaptureFixture):
    display = LogDisplay()
    with caplog.at_level(logging.INFO, logger="preheat"):
        for event in (STARTED, PROGRESS, FINISHED):
            display(event)
    display.close()
    assert [record.getMessage() for record in caplog.records] == [finished_line(FINISHED)]


def test_close_stops_the_heartbeat():
    display = LogDisplay()
    assert "heartbeat" in {thread.name for thread in threading.enumerate()}
    display.close()
    assert "heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_a_blocked_stage_that_never_started_is_logged(caplog: pytest.LogCaptureFixture):
    display = LogDisplay()
    with caplog.at_level(logging.INFO, logger="preheat"):
        display(Event(Kind.FINISHED, "export", 3.0, {"status": "blocked", "reason": "sweep failed"}))
    display.close()
    assert "sweep failed" in caplog.text


def on_terminal(*events: Event) -> str:
    screen = io.StringIO()
    display = TerminalDisplay(Console(file=screen, force_terminal=True, width=120, color_system=None))
    for event in events:
        display(event)
    display.close()
    return screen.getvalue()


def test_on_a_terminal_progress_is_a_bar_with_counts():
    text = on_terminal(STARTED, PROGRESS)
    assert "sweep: kernels" in text
    assert "3/10" in text


def test_on_a_terminal_a_bar_moves_and_is_not_added_again():
    later = Event(Kind.PROGRESS, "sweep", 3.0, {"what": "kernels", "done": 10, "total": 10})
    last_screen = on_terminal(STARTED, PROGRESS, later).rpartition("\r")[2]
    assert "10/10" in last_screen
    assert last_screen.count("sweep: kernels") == 1


@pytest.mark.parametrize("reason", ["nvcc rejected [1] of 2", "cudart.c:100: error: expected ';'"])
def test_on_a_terminal_a_finished_stage_is_a_line_printed_as_it_is(reason: str):
    event = Event(Kind.FINISHED, "sweep", 41.76, {"status": "failed", "reason": reason})
    assert finished_line(event) in on_terminal(STARTED, event)
