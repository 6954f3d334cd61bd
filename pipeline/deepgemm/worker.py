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

from pipeline.deepgemm.launch_spec import LaunchSpec
from pipeline.engine.forks import run_in_forks

PROGRESS_INTERVAL_S = 0.2
MAX_LAUNCHES_READ = 256


def main(job_path: str, result_path: str) -> None:
    """Launch the job's problems, each shard in a fork, and write the M -> kernels map of each."""
    # What DeepGEMM starts (the stand-in, its shell) must not be put on the virtual GPU too.
    os.environ.pop("LD_PRELOAD", None)
    os.environ.pop("LD_LIBRARY_PATH", None)
    job = json.loads(Path(job_path).read_text())
    shards = [[LaunchSpec.from_json(problem) for problem in shard] for shard in job["shards"]]
    # Imported here for the forks; it makes no CUDA context.
    import_module("pipeline.deepgemm.launchers")
    total = sum(len(spec.m) for shard in shards for spec in shard)
    results = run_in_forks(launch_shard, shards, Path(result_path).parent, total)
    Path(result_path).write_text(json.dumps({"shards": results}))


def launch_shard(shard: list[LaunchSpec], report_launched: Callable[[int], None]) -> dict[str, Any]:
    """The kernels of each problem of one fork, and what launching them took."""
    started_s = time.monotonic()
    launches = Launches()
    progress = LaunchProgress(report_launched)
    results = [sweep(spec, launches, progress) for spec in shard]
    return {"problems": results, "seconds": time.monotonic() - started_s, "peak_bytes": peak_bytes()}


def sweep(spec: LaunchSpec, launches: Launches, progress: LaunchProgress) -> dict[str, Any]:
    """Launch one problem at every M; kernels come back as runs [first M, last M, [kernel key, ...]]."""
    import torch

    from pipeline.deepgemm.launchers import LAUNCHERS, NotInLibrary

    # Operands of the last problem would count against a real card's memory.
    torch.cuda.empty_cache()
    try:
        launch = LAUNCHERS[spec.kernel](spec)
    except NotInLibrary as missing:
        return {"runs": [], "launched": 0, "unavailable": str(missing)}
    with on_fewer_sms(spec):
        return launch_every_m(spec, launch, launches, progress)


def launch_every_m(
    spec: LaunchSpec, launch: Callable[[int], object], launches: Launches, progress: LaunchProgress
) -> dict[str, Any]:
    """Note which kernels each M launches."""
    # What making the operands launched is no part of serving.
    launches.take()
    runs: list[list[Any]] = []
    num_launched = 0
    for m in every_m(spec):
        launch(m)
        num_launched += 1
        kernels = launches.take()
        if runs and runs[-1][2] == kernels and m > runs[-1][1]:
            runs[-1][1] = m
        else:
            runs.append([m, m, kernels])
        progress.step()
    return {"runs": runs, "launched": num_launched}


def every_m(spec: LaunchSpec) -> Iterator[int]:
    """Every M of the plan; for a contiguous problem once under each alignment that a server may set.

    SGLang's compact layout sets the library's theoretical alignment where that is below the default (sm_100 only;
    layers/deep_gemm_wrapper/entrypoint.py get_contiguous_layout_alignment), and the alignment decides the tile.
    """
    if not spec.kernel.is_contiguous:
        yield from spec.m
        return
    import deep_gemm

    default = deep_gemm.get_mk_alignment_for_contiguous_layout()
    for m in spec.m:
        if m % default != 0:
            raise SystemExit(f"{spec.kernel}: the plan has M={m}, deep_gemm takes multiples of {default}")
        yield m
    theoretical = {deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(m) for m in range(1, spec.max_m + 1)}
    for alignment in sorted(alignment for alignment in theoretical if 0 < alignment < default):
        deep_gemm.set_mk_alignment_for_contiguous_layout(alignment)
        yield from range(alignment, spec.max_m + 1, alignment)
    deep_gemm.set_mk_alignment_for_contiguous_layout(default)


@contextlib.contextmanager
def on_fewer_sms(spec: LaunchSpec) -> Generator[None]:
    """With the SMs that the problem names, as a server leaves the rest to communication."""
    import deep_gemm

    num_sms = spec.options.get("num_sms")
    if num_sms is None:
        yield
        return
    before = deep_gemm.get_num_sms()
    deep_gemm.set_num_sms(num_sms)
    try:
        yield
    finally:
        deep_gemm.set_num_sms(before)


def peak_bytes() -> int:
    """Most memory this process ever held. Not getrusage: that starts from the parent's size at the fork."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))


class Launches:
    """Reads from the virtual driver which cubins were launched, as kernel keys (their directory names)."""

    def __init__(self) -> None:
        self._driver = ctypes.CDLL("libcuda.so.1")
        # A real driver keeps no such list; then only the cache directory shows which keys were launched.
        self._lists_launches = hasattr(self._driver, "vgpu_take_launches")
        if self._lists_launches:
            self._driver.vgpu_path.restype = ctypes.c_char_p
        self._ids = (ctypes.c_int * MAX_LAUNCHES_READ)()
        self._keys: dict[int, str] = {}

    def take(self) -> list[str]:
        """Keys launched since the last call, in order."""
        if not self._lists_launches:
            return []
        number = self._driver.vgpu_take_launches(self._ids, MAX_LAUNCHES_READ)
        if number > MAX_LAUNCHES_READ:
            raise SystemExit(f"one call launched {number} kernels, at most {MAX_LAUNCHES_READ} can be told apart")
        return [self._keys.get(cubin_id) or self._look_up(cubin_id) for cubin_id in self._ids[:number]]

    def _look_up(self, cubin_id: int) -> str:
        self._keys[cubin_id] = Path(self._driver.vgpu_path(cubin_id).decode()).parent.name
        return self._keys[cubin_id]


class LaunchProgress:
    """Reports how many launches are done, not more often than a reader can use."""

    def __init__(self, report_launched: Callable[[int], None]) -> None:
        self._report_launched = report_launched
        self._launched = 0
        self._next_s = 0.0

    def step(self) -> None:
        """Count one launch."""
        self._launched += 1
        # A clock call costs as much as a tenth of a launch, so look at it now and then only.
        if self._launched % 256 == 0 and time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PROGRESS_INTERVAL_S
            self._report_launched(self._launched)


if __name__ == "__main__":
    main(*sys.argv[1:])
