"""Forks of one process."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.forks import run_in_forks


def square(share: Any, say_done: Callable[[int], None]) -> dict[str, Any]:
    say_done(share)
    return {"pid": os.getpid(), "square": share * share}


def test_every_share_has_a_process_and_the_results_keep_their_order(tmp_path: Path):
    results = run_in_forks(square, [3, 1, 2], tmp_path, 6)
    assert [result["square"] for result in results] == [9, 1, 4]
    assert len({os.getpid(), *(result["pid"] for result in results)}) == 4


def test_progress_is_the_sum_of_all_forks(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    run_in_forks(square, [3, 1, 2], tmp_path, 6)
    lines = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert len(lines) == 3
    assert max(line["launched"] for line in lines) == 6
    assert {line["total"] for line in lines} == {6}


@pytest.mark.parametrize(("end", "code"), [(lambda: os.kill(os.getpid(), signal.SIGKILL), -9), (lambda: exit(7), 7)])
def test_a_fork_that_fails_ends_the_others(end: Callable[[], None], code: int, tmp_path: Path):
    def work(share: Any, say_done: Callable[[int], None]) -> dict[str, Any]:
        if share == 1:
            end()
        time.sleep(60)
        return {}

    started_s = time.monotonic()
    with pytest.raises(SystemExit, match=f"one of 3 workers ended with code {code}"):
        run_in_forks(work, [0, 1, 2], tmp_path, 3)
    assert time.monotonic() - started_s < 30
