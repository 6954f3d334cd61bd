from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.servers.shared.start import AskedProblem, read_report
from tests.servers.shared.places import Place


def report_lines(folder: Path, *events: dict[str, Any], output: str = "") -> tuple[Path, Path]:
    (folder / "events.jsonl").write_text("".join(json.dumps({"s": 0.5} | event) + "\n" for event in events))
    (folder / "server.log").write_text(output)
    return folder / "events.jsonl", folder / "server.log"


def test_a_report_counts_answered_tokens_and_names_each_problem_once(tmp_path: Path):
    problem = {"event": "problem", "kernel": "GEMM", "n": 1, "k": 2, "groups": 3}
    report = read_report(
        *report_lines(
            tmp_path,
            {"event": "layout", "pp": 4},
            problem,
            problem,
            {"event": "batch", "mode": "EXTEND", "requests": 8},
            {"event": "batch", "mode": "DECODE", "requests": 2},
            {"event": "batch", "mode": "DECODE", "requests": 3},
            {"event": "done", "peak_bytes": 7, "s": 9.5},
        )
    )
    assert report.problems == (AskedProblem("GEMM", 1, 2, 3),)
    assert report.num_pipeline_ranks == 4
    assert report.tokens_answered == 5
    assert (report.finished, report.peak_bytes, report.seconds) == (True, 7, 9.5)
    assert not report.refused
    assert not report.timed_out


def test_a_report_of_a_start_that_left_nothing_is_unfinished(tmp_path: Path):
    report = read_report(*report_lines(tmp_path))
    assert not report.finished
    assert (report.problems, report.lines, report.peak_bytes) == ((), (), None)
    assert report.num_pipeline_ranks == 1


def test_a_report_keeps_the_last_lines_of_the_output_and_finds_what_was_not_answered(tmp_path: Path):
    output = (
        "virtual GPU: cuB is not answered\nvirtual GPU: cuA is not answered\n\n" + "more\n" * 60 + "Timeout (0:02)\n"
    )
    report = read_report(*report_lines(tmp_path, output=output))
    assert report.unanswered == ("cuA", "cuB")
    assert report.timed_out
    assert len(report.lines) == 50
    assert report.lines[-1] == "Timeout (0:02)"


def test_a_report_keeps_the_first_error_too_however_long_the_output_after_it(tmp_path: Path):
    output = "begin\nValueError: this head size is not known\n" + "frame\n" * 60
    lines = read_report(*report_lines(tmp_path, output=output)).lines
    assert lines[0] == "ValueError: this head size is not known"
    assert len(lines) == 51


def test_a_start_sees_nothing_of_the_user_s_own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "/home/of/the/user")
    monkeypatch.setenv("UNRELATED", "stays")
    place = Place(tmp_path)
    environment = place.starter.environment(tmp_path)
    assert "FLASHINFER_WORKSPACE_BASE" not in environment
    assert environment["UNRELATED"] == "stays"
    assert environment["HOME"] == str(tmp_path)
    assert environment["FAKE_CACHE_DIR"] == str(place.places.output / "fake")
    assert environment["FAKE_NCCL"] == str(tmp_path / "gpu" / "libvnccl.so")
    assert environment["CUDA_HOME"] == str(place.toolkit.cuda_home)
