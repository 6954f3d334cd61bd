"""Run a Python module in a child process: a JSON job goes in, a JSON result comes out, progress comes line by line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.engine.children import Children

OnProgress = Callable[[int, int], None]
LINES_KEPT = 15
# How Python, C++ libraries and compilers name one: ValueError: x, terminate called ... Error, error: x.
ERROR = re.compile(r"error\b|assert|terminate called", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a job ended: its result (None when it left none), exit code, and what it wrote on standard error."""

    result: dict[str, Any] | None
    returncode: int
    lines: tuple[str, ...]

    @property
    def last_words(self) -> str:
        """The end of standard error, with the line that says what went wrong."""
        return "\n".join(telling_lines(self.lines, LINES_KEPT))


@dataclass(frozen=True, slots=True)
class Job:
    """`python -m module JOB RESULT`, run in `folder`, which is its own."""

    module: str
    content: Mapping[str, Any]
    folder: Path
    environment: Mapping[str, str]
    limit_s: float | None = None
    """Seconds after which it is killed; None means never."""

    def run(self, children: Children, on_progress: OnProgress | None = None) -> Answer:
        """Wait for it. A line {"launched": a, "total": b} on its standard output is progress; others are ignored."""
        job, result, stderr = (self.folder / name for name in ("job.json", "result.json", "stderr"))
        job.write_text(json.dumps(self.content))
        limit = [] if self.limit_s is None else ["timeout", "--signal=KILL", str(self.limit_s)]
        command = [*limit, sys.executable, "-m", self.module, str(job), str(result)]
        with stderr.open("w") as errors:
            child = children.start(
                command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=errors
            )
            _relay(child, on_progress)
            ended = children.wait(child)
        finished = ended.returncode == 0 and result.exists()
        lines = [line for line in stderr.read_text(errors="replace").splitlines() if line.strip()]
        return Answer(json.loads(result.read_text()) if finished else None, ended.returncode, tuple(lines))


def telling_lines(lines: Sequence[str], most: int) -> list[str]:
    """The last lines of a child's output, after the first one that names an error: a long trace may follow that."""
    last_lines = list(lines[-most:])
    first_error = next((line for line in lines if ERROR.search(line)), None)
    return last_lines if first_error is None or first_error in last_lines else [first_error, *last_lines]


def _relay(child: subprocess.Popen[str], on_progress: OnProgress | None) -> None:
    assert child.stdout is not None, "the child was started with a pipe"
    with child.stdout as lines:
        for line in lines:
            try:
                message = json.loads(line)
                if on_progress is not None:
                    on_progress(message["launched"], message["total"])
            except (ValueError, KeyError, TypeError):
                continue
