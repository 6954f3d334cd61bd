"""The child processes of a run: started in one place, so that an interrupt can end them all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pipeline.engine.errors import Interrupted


@dataclass(frozen=True, slots=True)
class ChildExit:
    """How a child ended: its exit code (negative signal number) and the CPU seconds of its whole tree."""

    returncode: int
    cpu_s: float


class Children:
    """Starts children in sessions of their own; after `stop` none can be started and none is left."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[int, subprocess.Popen[Any]] = {}
        self._stopped = threading.Event()

    @property
    def stopped(self) -> bool:
        """Whether the run was interrupted."""
        return self._stopped.is_set()

    def check(self) -> None:
        """Raise Interrupted once the run was interrupted; long loops call it."""
        if self.stopped:
            raise Interrupted("interrupted; what was finished is kept, run the same command again to go on")

    def pause(self, seconds: float) -> None:
        """Sleep, but not past an interrupt."""
        self._stopped.wait(seconds)
        self.check()

    def start(
        self, command: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdout: int | IO[Any], stderr: int | IO[Any]
    ) -> subprocess.Popen[str]:
        """Start one child; Interrupted when the run was interrupted before."""
        with self._lock:
            self.check()
            child = subprocess.Popen(
                command, cwd=cwd, env=env, stdout=stdout, stderr=stderr, text=True, start_new_session=True
            )
            self._live[child.pid] = child
            return child

    def wait(self, child: subprocess.Popen[str]) -> ChildExit:
        """Wait for a child; Interrupted when it was ended by `stop`."""
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        with self._lock:
            self._live.pop(child.pid, None)
        self.check()
        return ChildExit(returncode=child.returncode, cpu_s=usage.ru_utime + usage.ru_stime)

    def stop(self, *, kill: bool = False) -> None:
        """End every child's whole session; with `kill`, without giving it time to clean up."""
        self._stopped.set()
        with self._lock:
            for pid in self._live:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL if kill else signal.SIGTERM)


@contextlib.contextmanager
def interruptible(children: Children) -> Generator[None]:
    """The first Ctrl-C ends the children and lets the run report; the second leaves at once."""

    def stop(signum: int, frame: Any) -> None:
        if children.stopped:
            children.stop(kill=True)
            os._exit(130)
        children.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
