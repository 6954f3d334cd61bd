"""Runs in a child process on the GPU: let FlashInfer choose a tactic for each shape, or use the ones it chose.

    python -m pipeline.tuning.worker JOB.json RESULT.json

One child tunes one operation: a tactic that crashes or hangs takes this process with it and not the run. With
`"tune": false` the child only loads the file and executes every shape once, as a server would.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.tuning.tactics import DEFAULT_TACTIC

REPEATS = 20
WARM_UP = 5


def main(job_path: str, result_path: str) -> None:
    """Write what was tuned, how long default and chosen tactic take, and which shapes the file covers."""
    from flashinfer import autotune
    from flashinfer.autotuner import AutoTuner

    job = json.loads(Path(job_path).read_text())
    if (refused := foreign(Path(job["file"]))) is not None:
        Path(result_path).write_text(json.dumps({"refused": refused, "profiled": 0}))
        return
    file, shapes = Path(job["file"]), job["shapes"]
    calls = [call(job["op"], *shape) for shape in shapes]
    before = entries(file)
    with autotune(job["tune"], cache=str(file), tuning_buckets=tuple(job["buckets"])):
        for run in calls:
            run()
            torch.cuda.synchronize()
    # total_configs counts what was looked at, cached or not; successful_configs what was really timed.
    profiled = sum(AutoTuner.get().stats.tuned_op_successful_configs.values())
    after = entries(file)
    new = set(after) - set(before)
    default_us, chosen_us = race(file, calls, job["buckets"]) if new else ([], [])
    outcome = {
        "profiled": profiled,
        "new_entries": len(new),
        "entries": len([key for key in after if key.startswith(f"('{job['op']}'")]),
        "default_us": default_us,
        "chosen_us": chosen_us,
    }
    Path(result_path).write_text(json.dumps(outcome))


def race(file: Path, calls: Sequence[Callable[[], object]], buckets: Sequence[int]) -> tuple[list[float], list[float]]:
    """Times of the default tactics and of the chosen ones.

    Both are looked up in a file, because at small shapes the look-up takes as long as the kernel.
    """
    from flashinfer import autotune

    default = file.with_name("default.json")
    content = json.loads(file.read_text())
    names = [key for key in content if not key.startswith("_")]
    default.write_text(json.dumps(content | {key: [content[key][0], DEFAULT_TACTIC] for key in names}))
    times: list[list[float]] = []
    for tactics in (default, file):
        with autotune(False, cache=str(tactics), tuning_buckets=tuple(buckets)):
            times.append([microseconds(run) for run in calls])
    return times[0], times[1]


def call(op: str, m: int, n: int, k: int) -> Callable[[], object]:
    """A function that runs the operation once on random inputs, as the servers call it."""
    import flashinfer

    if op == "fp8_gemm":
        a = torch.randn(1, m, k, device="cuda").to(torch.float8_e4m3fn)
        b = torch.randn(1, n, k, device="cuda").to(torch.float8_e4m3fn).transpose(-2, -1)
        one, out = torch.ones((), device="cuda"), torch.empty(1, m, n, device="cuda", dtype=torch.bfloat16)
        return lambda: flashinfer.bmm_fp8(a, b, one, one, torch.bfloat16, out=out, backend="cublas")
    if op == "bf16_gemm":
        a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).transpose(-2, -1)
        out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
        return lambda: flashinfer.mm_bf16(a, b, out=out, backend="cublaslt")
    raise SystemExit(f"no call for operation {op}")


def microseconds(run: Callable[[], object]) -> float:
    """Median time of one launch by CUDA events."""
    for _ in range(WARM_UP):
        run()
    times: list[float] = []
    for _ in range(REPEATS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return sorted(times)[REPEATS // 2]


def foreign(file: Path) -> str | None:
    """The first field in which the file belongs to another GPU or version, or None; FlashInfer would ignore it."""
    autotuner: Any = importlib.import_module("flashinfer.autotuner.autotuner")
    saved = json.loads(file.read_text()).get("_metadata", {}) if file.exists() else {}
    for name, value in autotuner._collect_metadata().items():
        if saved.get(name, value) not in (value, "*"):
            return f"{name} is {saved[name]!r} in the file, {value!r} here"
    return None


def entries(file: Path) -> dict[str, Any]:
    """The file's tactics by key; FlashInfer's own fields begin with an underscore."""
    if not file.exists():
        return {}
    return {key: value for key, value in json.loads(file.read_text()).items() if not key.startswith("_")}


if __name__ == "__main__":
    main(*sys.argv[1:])
