"""What this machine has: cores, memory, disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pipeline.engine.errors import HostError


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def require_writable(folder: Path, *, key: str, needed_bytes: int) -> None:
    """Make the folder; HostError when that fails, or when its disk has less than `needed_bytes` free."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HostError(f"{key}: cannot make {folder}: {error.strerror}; give a folder you may write to") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise HostError(f"{key}: {folder} is not writable; give a folder you may write to, or change its owner")
    free = shutil.disk_usage(folder).free
    if free < needed_bytes:
        raise HostError(
            f"{key}: {folder} has {free / 2**20:.0f} MiB free, this run may need {needed_bytes / 2**20:.0f} MiB; "
            "free some space or name another disk"
        )
