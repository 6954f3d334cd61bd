"""Working folders that a killed run cannot leave behind for ever: the next run removes those without an owner."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path


@contextlib.contextmanager
def scratch_folder(root: Path, prefix: str) -> Generator[Path]:
    """A fresh folder under `root`, removed at the end; folders of runs that died are removed first.

    The owner holds a lock on the folder, which the kernel releases however it dies; a process id would mean nothing
    to another container that shares the disk.
    """
    root.mkdir(parents=True, exist_ok=True)
    # The lock on root makes "new folder" and "its lock" one step for everybody who looks for abandoned folders.
    with _locked(root):
        _remove_abandoned(root, prefix)
        folder = Path(tempfile.mkdtemp(dir=root, prefix=prefix))
        owner = contextlib.ExitStack()
        owner.enter_context(_locked(folder))
    try:
        with owner:
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned(root: Path, prefix: str) -> None:
    for folder in root.glob(f"{prefix}*"):
        with contextlib.suppress(BlockingIOError, FileNotFoundError), _locked(folder, wait=False):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path, *, wait: bool = True) -> Generator[None]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
