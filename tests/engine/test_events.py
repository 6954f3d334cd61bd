from __future__ import annotations

import json
import threading
import time
from pathlib import Path

from pipeline.engine.events import Event, Events, JsonLines, Kind, Reporter, Timeline


def test_every_listener_sees_every_event_in_order():
    first = list[Event]()
    second = list[Event]()
    events = Events(first.append, second.append)
    events.emit(Kind.STARTED, "sweep")
    events.emit(Kind.FINISHED, "sweep", status="ok")
    assert [(event.kind, event.stage) for event in first] == [(Kind.STARTED, "sweep"), (Kind.FINISHED, "sweep")]
    assert first == second
    assert first[1].data == {"status": "ok"}


def test_times_are_seconds_since_the_run_began_and_never_go_back():
    seen = list[Event]()
    events = Events(seen.append)
    for _ in range(50):
        events.emit(Kind.STARTED, "plan")
    times = [event.at_s for event in seen]
    assert 0 <= times[0] < 5
    assert times == sorted(times)


def test_listeners_are_called_by_one_thread_at_a_time():
    inside = threading.Lock()
    overlaps = list[Event]()
    seen = list[Event]()

    def listener(event: Event) -> None:
        if not inside.acquire(blocking=False):
            overlaps.append(event)
            return
        seen.append(event)
        # Gives another thread the chance to come in.
        time.sleep(0.001)
        inside.release()

    events = Events(listener)
    together = threading.Barrier(4, timeout=10)

    def emit() -> None:
        together.wait()
        for _ in range(10):
            events.emit(Kind.PROGRESS, "sweep")

    threads = [threading.Thread(target=emit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert overlaps == []
    assert len(seen) == 40


def test_a_reporter_tells_what_is_done_of_how_many():
    seen = list[Event]()
    Reporter(Events(seen.append), "sweep")("kernels", 3, 10)
    (event,) = seen
    assert (event.kind, event.stage) == (Kind.PROGRESS, "sweep")
    assert event.data == {"what": "kernels", "done": 3, "total": 10}


def test_events_jsonl_holds_one_object_a_line_and_each_is_there_at_once(tmp_path: Path):
    lines = JsonLines(tmp_path / "events.jsonl")
    lines(Event(Kind.STARTED, "sweep", 0.5))
    # Read before close: a run that is killed has left every event.
    assert json.loads((tmp_path / "events.jsonl").read_text()) == {"at_s": 0.5, "kind": "started", "stage": "sweep"}
    lines(Event(Kind.FINISHED, "sweep", 1.23456, {"status": "failed", "reason": "two\nlines"}))
    lines.close()
    records = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert len(records) == 2
    assert records[1] == {
        "at_s": 1.2346,
        "kind": "finished",
        "stage": "sweep",
        "status": "failed",
        "reason": "two\nlines",
    }


def trace(path: Path, *events: Event) -> list[dict[str, object]]:
    timeline = Timeline()
    for event in events:
        timeline(event)
    timeline.write(path)
    return json.loads(path.read_text())["traceEvents"]


def test_the_timeline_has_a_bar_for_each_stage_in_microseconds(tmp_path: Path):
    (bar,) = trace(
        tmp_path / "timeline.json",
        Event(Kind.STARTED, "sweep", 1.0),
        Event(Kind.FINISHED, "sweep", 3.5, {"status": "ok"}),
    )
    assert (bar["name"], bar["ph"], bar["ts"], bar["dur"]) == ("sweep", "X", 1e6, 2.5e6)
    assert bar["args"] == {"status": "ok"}


def test_stages_that_ran_at_the_same_time_have_rows_of_their_own(tmp_path: Path):
    bars = trace(
        tmp_path / "timeline.json",
        Event(Kind.STARTED, "tune", 0.0),
        Event(Kind.STARTED, "sweep", 0.1),
        Event(Kind.FINISHED, "tune", 0.2),
        Event(Kind.FINISHED, "sweep", 0.3),
    )
    assert len({bar["tid"] for bar in bars}) == 2


def test_progress_becomes_a_counter(tmp_path: Path):
    (counter,) = trace(
        tmp_path / "timeline.json",
        Event(Kind.PROGRESS, "sweep", 2.0, {"what": "kernels", "done": 3, "total": 10}),
    )
    assert (counter["ph"], counter["args"]) == ("C", {"kernels": 3})


def test_a_stage_that_never_ran_has_no_bar(tmp_path: Path):
    assert trace(tmp_path / "timeline.json", Event(Kind.FINISHED, "export", 1.0, {"status": "blocked"})) == []
