from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.engine.children import Children
from pipeline.engine.jobs import LINES_KEPT, Job, telling_lines

HEAD = "import json, sys, time, os\njob = json.load(open(sys.argv[1]))\n"


def job(folder: Path, code: str, *, limit_s: float | None = None) -> Job:
    """A module of its own in the folder, as `python -m` finds it."""
    (folder / "some_module.py").write_text(HEAD + code)
    return Job("some_module", {"number": 21}, folder, dict(os.environ), limit_s)


def test_a_result_comes_back_with_the_progress_on_the_way(tmp_path: Path):
    code = (
        "print('not json')\nprint(json.dumps({'launched': 1, 'total': 2}))\n"
        "json.dump({'twice': 2 * job['number']}, open(sys.argv[2], 'w'))\n"
    )
    seen: list[tuple[int, int]] = []
    answer = job(tmp_path, code).run(Children(), lambda done, total: seen.append((done, total)))
    assert answer.result == {"twice": 42}
    assert seen == [(1, 2)]


@pytest.mark.parametrize(
    ("code", "returncode"),
    [("print('why', file=sys.stderr); sys.exit(3)", 3), ("print('why', file=sys.stderr); os.kill(os.getpid(), 9)", -9)],
)
def test_a_job_that_fails_has_no_result_but_last_words(tmp_path: Path, code: str, returncode: int):
    answer = job(tmp_path, code).run(Children())
    assert (answer.result, answer.returncode, answer.last_words) == (None, returncode, "why")


def test_the_line_that_says_what_went_wrong_outlives_the_trace_after_it(tmp_path: Path):
    trace = [f"  #{number} frame" for number in range(60)]
    lines = ["a warning", "RuntimeError: Assertion error: nvcc is too old", "C++ trace:", *trace, "a worker ended"]
    code = f"print({chr(10).join(lines)!r}, file=sys.stderr); sys.exit(1)"
    words = job(tmp_path, code).run(Children()).last_words.splitlines()
    assert words[0] == "RuntimeError: Assertion error: nvcc is too old"
    assert words[1:] == lines[-LINES_KEPT:]


def test_an_error_among_the_last_lines_is_shown_once():
    assert telling_lines(["begin", "error: x", "end"], 2) == ["error: x", "end"]


def test_a_result_of_a_job_that_then_failed_is_not_believed(tmp_path: Path):
    code = "json.dump({}, open(sys.argv[2], 'w')); sys.exit(1)"
    assert job(tmp_path, code).run(Children()).result is None


def test_a_job_past_its_limit_is_killed(tmp_path: Path):
    answer = job(tmp_path, "time.sleep(60)", limit_s=0.3).run(Children())
    assert answer.result is None
    assert answer.returncode != 0
