"""Runs in a child process on the virtual GPU: launch every M of every problem and note which kernels each needs.

    python -m pipeline.deepgemm.worker JOB.json RESULT.json

The problems come in shards, each launched by a fork of this process. It prints one JSON line
{"launched": ..., "total": ...} now and then; only it and launchers/, which it loads, import deep_gemm here.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pipeline.engine.forks import run_in_forks

PROGRESS_INTERVAL_S = 0.2
MAX_LAUNCHES_READ = 256


def main(job_path: str, result_path: str) -> None:
    """Launch the job's problems, each shard in a fork, and write the M -> kernels map of each."""
    # What DeepGEMM starts (the stand-in, its shell) must not be put on the virtual GPU too.
    os.environ.pop("LD_PRELOAD", None)
    os.environ.pop("LD_LIBRARY_PATH", None)
    shards = json.loads(Path(job_path).read_text())["shards"]
    # Imported here for the forks; it makes no CUDA context.
    import_module("pipeline.deepgemm.launchers")
    total = sum(count(problem["m"]) for shard in shards for problem in shard)
    results = run_in_forks(launch_shard, shards, Path(result_path).parent, total)
    Path(result_path).write_text(json.dumps({"shards": results}))


def launch_shard(shard: list[dict[str, Any]], say_done: Callable[[int], None]) -> dict[str, Any]:
    """What one fork finds out about its problems."""
    started_s = time.monotonic()
    launches = Launches()
    progress = Progress(say_done)
    results = [sweep(problem, launches, progress) for problem in shard]
    return {"problems": results, "seconds": time.monotonic() - started_s, "peak_bytes": peak_bytes()}


def sweep(problem: dict[str, Any], launches: Launches, progress: Progress) -> dict[str, Any]:
    """Launch one problem at every M; kernels come back as runs [first M, last M, [kernel key, ...]]."""
    import torch

    from pipeline.deepgemm.launchers import NotInLibrary

    # Operands of the last problem would count against a real card's memory.
    torch.cuda.empty_cache()
    try:
        launch = launcher(problem)
    except NotInLibrary as missing:
        return {"runs": [], "launched": 0, "unavailable": str(missing)}
    with on_fewer_sms(problem):
        return launch_every_m(problem, launch, launches, progress)


def launch_every_m(
    problem: dict[str, Any], launch: Callable[[int], object], launches: Launches, progress: Progress
) -> dict[str, Any]:
    """Note which kernels each M launches."""
    # What making the operands launched is no part of serving.
    launches.take()
    runs: list[list[Any]] = []
    launched = 0
    for m in every_m(problem):
        launch(m)
        launched += 1
        kernels = launches.take()
        if runs and runs[-1][2] == kernels and m > runs[-1][1]:
            runs[-1][1] = m
        else:
            runs.append([m, m, kernels])
        progress.step()
    return {"runs": runs, "launched": launched}


def every_m(problem: dict[str, Any]) -> Iterator[int]:
    """Every M of the plan; for a contiguous problem once under each alignment that a server may set.

    SGLang's compact layout sets the library's theoretical alignment where that is below the default (sm_100 only;
    layers/deep_gemm_wrapper/entrypoint.py get_contiguous_layout_alignment), and the alignment decides the tile.
    """
    if not problem["kernel"].endswith("_CONTIG"):
        yield from rows(problem["m"])
        return
    import deep_gemm

    default = deep_gemm.get_mk_alignment_for_contiguous_layout()
    largest = max(rows(problem["m"]))
    for m in rows(problem["m"]):
        if m % default != 0:
            raise SystemExit(f"{problem['kernel']}: the plan has M={m}, deep_gemm takes multiples of {default}")
        yield m
    smaller = {deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(m) for m in range(1, largest + 1)}
    for alignment in sorted(alignment for alignment in smaller if 0 < alignment < default):
        deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
        yield from range(alignment, largest + 1, alignment)
    deep_gemm.set_mk_alignment_for_contiguous_layout(default)


def launcher(problem: dict[str, Any]) -> Callable[[int], object]:
    """A function that launches the problem at M rows."""
    from pipeline.deepgemm.launchers import LAUNCHERS

    make = LAUNCHERS.get(problem["kernel"])
    if make is None:
        raise SystemExit(f"no launcher for kernel {problem['kernel']}")
    largest = max(rows(problem["m"]))
    return make(problem["n"], problem["k"], problem["groups"], largest, problem.get("options", {}))


@contextlib.contextmanager
def on_fewer_sms(problem: dict[str, Any]) -> Generator[None]:
    """With the SMs that the problem names, as a server leaves the others to communication."""
    import deep_gemm

    if (number := problem.get("options", {}).get("num_sms")) is None:
        yield
        return
    before = deep_gemm.get_num_sms()
    deep_gemm.set_num_sms(number)
    try:
        yield
    finally:
        deep_gemm.set_num_sms(before)


def peak_bytes() -> int:
    """Most memory this process ever held. Not getrusage: that starts from the parent's size at the fork."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


def rows(ranges: list[list[int]]) -> Iterator[int]:
    """Every M of the ranges [start, stop, step]."""
    for start, stop, step in ranges:
        yield from range(start, stop, step)


def count(ranges: list[list[int]]) -> int:
    """How many M the ranges hold."""
    return sum(len(range(*part)) for part in ranges)


class Launches:
    """Reads from the virtual driver which cubins were launched, as kernel keys (their directory names)."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        # A real driver does not tell; then only the cache directory shows which keys there are.
        self._tells = hasattr(self._driver, "vgpu_take_launches")
        if self._tells:
            self._driver.vgpu_path.restype = ctypes.c_char_p
        self._ids = (ctypes.c_int * MAX_LAUNCHES_READ)()
        self._keys: dict[int, str] = {}

    def take(self) -> list[str]:
        """Keys launched since the last call, in order."""
        if not self._tells:
            return []
        number = self._driver.vgpu_take_launches(self._ids, MAX_LAUNCHES_READ)
        if number > MAX_LAUNCHES_READ:
            raise SystemExit(f"one call launched {number} kernels, at most {MAX_LAUNCHES_READ} can be told apart")
        return [self._keys.get(i) or self._remember(i) for i in self._ids[:number]]

    def _remember(self, loaded: int) -> str:
        self._keys[loaded] = Path(self._driver.vgpu_path(loaded).decode()).parent.name
        return self._keys[loaded]


class Progress:
    """Says how far the launches are, not more often than a reader can use."""

    def __init__(self, say_done: Callable[[int], None]) -> None:
        self._say_done = say_done
        self._launched = 0
        self._next_s = 0.0

    def step(self) -> None:
        """Count one launch."""
        self._launched += 1
        # A clock call costs as much as a tenth of a launch, so look at it now and then only.
        if self._launched % 256 == 0 and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_INTERVAL_S
            self._say_done(self._launched)


if __name__ == "__main__":
    main(*sys.argv[1:])
