"""Start run.py as a user does: in an empty folder, with an empty home."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

PROJECT = Path(__file__).parents[2]
CONF = PROJECT / "conf"
Done = subprocess.CompletedProcess[str]
LIMIT_S = 120


@dataclass(frozen=True)
class Place:
    """An empty folder to run in and an empty home; what a run leaves anywhere else is not looked at."""

    root: Path

    @property
    def here(self) -> Path:
        return self.root / "here"

    def preheat(self, *arguments: str, python: tuple[str, ...] = ()) -> Done:
        """Run to the end; `python` are the interpreter's own arguments."""
        home = self.root / "home"
        for folder in (self.here, home):
            folder.mkdir(exist_ok=True)
        env = {name: value for name, value in os.environ.items() if name not in ("PREHEAT_STORE", "HYDRA_FULL_ERROR")}
        return subprocess.run(
            [sys.executable, *python, str(PROJECT / "run.py"), *arguments],
            cwd=self.here,
            env=env | {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )

    def left_behind(self) -> list[str]:
        """Everything in the two folders."""
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob("*/*"))


def errors_of(done: Done) -> list[str]:
    """What the program printed as errors, one line each."""
    return [line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error: ")]


def assert_refused(done: Done, *parts: str) -> None:
    """Exit code 2 without a traceback, and errors that hold all of these parts."""
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in "\n".join(errors_of(done)), done.stderr
