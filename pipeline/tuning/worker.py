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
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from pipeline.arithmetic import ceil_div
from pipeline.tuning.tactics import AUTOTUNE, DEFAULT_TACTIC, FUSED_MOE, FUSED_MOE_PRODUCTS, TUNABLE, stored_keys

REPEATS = 20
WARM_UP = 5
# Bytes below this are e4m3 numbers from 0 to 1.
E4M3_ONE = 0x39
# How the keys of an operation begin.
KEY_PREFIXES = {op: (f"('{op}'",) for op in TUNABLE} | {FUSED_MOE: tuple(f"('{name}'" for name in FUSED_MOE_PRODUCTS)}


def main(job_path: str, result_path: str) -> None:
    """Write what was tuned, how long default and chosen tactic take, and how many entries there are."""
    job = json.loads(Path(job_path).read_text())
    Path(result_path).write_text(json.dumps(outcome_of(job)))


def outcome_of(job: dict[str, Any]) -> dict[str, Any]:
    """What the parent is told: `refused` or `not_built` with the reason, or what was tuned."""
    if (difference := foreign_field(Path(job["file"]))) is not None:
        return {"refused": difference, "profiled": 0}
    if (reason := not_built(job["op"])) is not None:
        return {"not_built": reason, "profiled": 0}
    calls = [CALLS[job["op"]](*shape) for shape in job["shapes"]]
    return tune_into_file(job, calls) if job["interface"] == AUTOTUNE else tune_into_store(job, calls)


def tune_into_file(job: dict[str, Any], calls: Sequence[Callable[[], object]]) -> dict[str, Any]:
    """Through autotune(cache=FILE); new entries race against the default."""
    from flashinfer import autotune

    file = Path(job["file"])
    before = entries(file)
    with autotune(job["tune"], cache=str(file), tuning_buckets=tuple(job["buckets"])):
        run_all(calls)
    after = entries(file)
    new = set(after) - set(before)
    default_us, chosen_us = race(file, calls, job["buckets"]) if new else ([], [])
    return {
        "profiled": num_profiled(),
        "new_entries": len(new),
        "entries": len([key for key in after if key.startswith(KEY_PREFIXES[job["op"]])]),
        "default_us": default_us,
        "chosen_us": chosen_us,
    }


def tune_into_store(job: dict[str, Any], calls: Sequence[Callable[[], object]]) -> dict[str, Any]:
    """Through autotune_v2(cache_root=FOLDER), where this FlashInfer has it.

    A replay is what a server does: a tuning context of a fresh process times some entries again although the store
    has them (bf16_gemm in 0.7.2, whose measurement policy it does not recognise).
    """
    import flashinfer

    if not hasattr(flashinfer, "autotune_v2"):
        return {"profiled": 0, "entries": None}
    mode = "tune" if job["tune"] else "replay"
    with flashinfer.autotune_v2(mode=mode, cache_root=job["store"], tuning_buckets=tuple(job["buckets"])):
        run_all(calls)
    entries_of_op = [key for key in stored_keys(Path(job["store"])) if key.startswith(KEY_PREFIXES[job["op"]])]
    return {"profiled": num_profiled(), "entries": len(entries_of_op)}


def run_all(calls: Sequence[Callable[[], object]]) -> None:
    """Each once; an error is that of its own call."""
    for run in calls:
        run()
        torch.cuda.synchronize()


def num_profiled() -> int:
    """Tactics that were really timed in this process; total_configs would count those looked up as well."""
    from flashinfer.autotuner import AutoTuner

    return sum(AutoTuner.get().stats.tuned_op_successful_configs.values())


def not_built(op: str) -> str | None:
    """Why an operation is not tuned: its module is not built and would take an hour; None when it may be called."""
    if op != FUSED_MOE:
        return None
    modules: Any = importlib.import_module("flashinfer.jit.fused_moe")
    arch = "".join(map(str, torch.cuda.get_device_capability()))
    make_spec = getattr(modules, f"gen_cutlass_fused_moe_sm{arch}_module", None)
    if make_spec is None:
        return f"FlashInfer has no cutlass_fused_moe for sm_{arch}"
    spec = make_spec()
    if spec.is_compiled:
        return None
    return (
        f"its module {spec.name} is not built here: {len(spec.sources)} sources, more than an hour on 16 cores; build "
        "it once with FlashInfer's AOT build (python -m flashinfer.aot) or install flashinfer-jit-cache, then tune"
    )


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


def fp8_gemm(m: int, n: int, k: int) -> Callable[[], object]:
    """bmm_fp8 with cuBLAS, one scale for each tensor."""
    import flashinfer

    a = torch.randn(1, m, k, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(1, n, k, device="cuda").to(torch.float8_e4m3fn).transpose(-2, -1)
    one = torch.ones((), device="cuda")
    out = torch.empty(1, m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: flashinfer.bmm_fp8(a, b, one, one, torch.bfloat16, out=out, backend="cublas")


def bf16_gemm(m: int, n: int, k: int) -> Callable[[], object]:
    """mm_bf16 with cuBLASLt."""
    import flashinfer

    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(n, k, device="cuda", dtype=torch.bfloat16).transpose(-2, -1)
    out = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    return lambda: flashinfer.mm_bf16(a, b, out=out, backend="cublaslt")


def fused_moe(m: int, hidden: int, intermediate: int, experts: int, top_k: int) -> Callable[[], object]:
    """cutlass_fused_moe with block FP8 experts, as vLLM calls it on sm_90 (use_deepseek_fp8_block_scale)."""
    from flashinfer.fused_moe import cutlass_fused_moe

    w13 = expert_weight(experts, 2 * intermediate, hidden)
    w2 = expert_weight(experts, hidden, intermediate)
    x = torch.randn(m, hidden, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(x)
    weights, ids = torch.rand(m, experts, device="cuda").topk(top_k, dim=-1)
    return lambda: cutlass_fused_moe(
        x, ids.int(), weights, w13[0], w2[0], torch.bfloat16, [w13[1], w2[1]],
        output=out, use_deepseek_fp8_block_scale=True,
    )  # fmt: skip


CALLS: dict[str, Callable[..., Callable[[], object]]] = {
    "fp8_gemm": fp8_gemm,
    "bf16_gemm": bf16_gemm,
    FUSED_MOE: fused_moe,
}
"""By operation, from the sizes of one shape: what runs it once on random inputs, as the servers call it."""


@lru_cache(maxsize=2)
def expert_weight(experts: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random FP8 weights [G, N, K] without a NaN, and their scales; one pair serves every M."""
    data = torch.empty(experts, n, k, device="cuda", dtype=torch.uint8).random_(0, E4M3_ONE)
    return data.view(torch.float8_e4m3fn), torch.ones(experts, ceil_div(n, 128), k // 128, device="cuda")


def microseconds(run: Callable[[], object]) -> float:
    """Median time of one launch by CUDA events."""
    for _ in range(WARM_UP):
        run()
    times: list[float] = []
    for _ in range(REPEATS):
        start = torch.cuda.Event(enable_timing=True)
        end = torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end))
    return sorted(times)[REPEATS // 2]


def foreign_field(file: Path) -> str | None:
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
