"""On the target GPU: Preheat against a server-style sweep that compiles at first need and executes every M.

    python benchmarks/h200.py [--json FILE] [--parallel dp8_ep8] [--budget-s 400] [--no-proof] [--warm-only]

One run on one machine. The server-style sweep takes problems in the recipe's order while the next one is expected to
fit the budget; what it did not reach is named. Preheat bakes the same problems from an empty store, then verifies
them again. --warm-only leaves out the compiling sweep, so that execution is compared on every problem. The proof
bakes the whole recipe, discovers it on the real GPU too and executes every kernel.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from benchmarks.bake import Bake, Bench, choice, say
from pipeline.buffers.layout import Layout
from pipeline.buffers.sizing import plan_buffers
from pipeline.deepgemm.farm import default_workers
from pipeline.deepgemm.hardware import check_on_gpu, discover_on_real_gpu, gpu_mismatch, on_real_gpu
from pipeline.deepgemm.memo import distribution_version
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.host import num_cores
from pipeline.engine.tables import Table
from pipeline.recipe import AdapterKind
from pipeline.servers.derive import derive
from pipeline.servers.registry import SERVERS
from pipeline.servers.shared.problems import Problem
from pipeline.target import Target
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel


@dataclass(frozen=True)
class Compared:
    """The same problems both ways."""

    problems: list[str]
    num_keys: int
    server_cold_s: float | None
    server_cached_s: float
    preheat: Bake
    preheat_check_s: float

    @property
    def cold_ratio(self) -> float | None:
        """How often Preheat's cold bake fits into the server-style sweep; None where that was left out."""
        return None if self.server_cold_s is None else self.server_cold_s / self.preheat.wall_s

    @property
    def warm_ratio(self) -> float:
        """How often the re-verification fits into a sweep with everything cached."""
        return self.server_cached_s / self.preheat_check_s


def server_sweep(bench: Bench, problems: Sequence[Problem], cache: Path) -> float:
    """Seconds to execute every M on the GPU, compiling what the cache lacks when its M first comes."""
    discoverer = on_real_gpu(bench.discoverer("server", real_compiler=True))
    started_s = time.monotonic()
    discoverer.record(problems, cache, say("server-style sweep"))
    return time.monotonic() - started_s


def compare(bench: Bench, problems: Sequence[Problem], budget_s: float) -> tuple[Compared, list[str]]:
    """Both ways over as many problems as the budget allows, and the names of the others."""
    cache = bench.folder / "server" / "deep_gemm"
    spent_s = 0.0
    taken = 0
    while taken < len(problems) and (taken == 0 or spent_s * (taken + 1) / taken <= budget_s):
        spent_s += server_sweep(bench, problems[taken : taken + 1], cache)
        taken += 1
    chosen = problems[:taken]
    baked, keys = bench.bake(chosen, "compared")
    server_keys = {entry.name for entry in (cache / "cache").iterdir()}
    if keys != server_keys:
        raise SystemExit(f"the caches differ: {sorted(keys ^ server_keys)}")
    return compare_warm(bench, chosen, cache, baked, spent_s), [problem.name for problem in problems[taken:]]


def compare_warm(
    bench: Bench, problems: Sequence[Problem], cache: Path, baked: Bake, server_cold_s: float | None
) -> Compared:
    """A sweep that finds everything compiled, against the re-verification of the same problems."""
    before = {entry.name for entry in (cache / "cache").iterdir()}
    cached_s = server_sweep(bench, problems, cache)
    if added := {entry.name for entry in (cache / "cache").iterdir()} - before:
        raise SystemExit(f"the cached sweep compiled {sorted(added)}")
    started_s = time.monotonic()
    bench.discoverer("compared").check(problems, bench.folder / "compared" / "deep_gemm", say("re-verification"))
    check_s = time.monotonic() - started_s
    return Compared([problem.name for problem in problems], len(before), server_cold_s, cached_s, baked, check_s)


def peak_bytes(sizes: Sequence[int]) -> int:
    """Most device memory held while buffers of these sizes are made and kept, as stages of their own would."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    buffers = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
    peak = torch.cuda.max_memory_allocated()
    buffers.clear()
    return peak


def memory(layout: Layout) -> dict[str, int]:
    """One arena against each phase with buffers of its own."""
    apart = [
        region.spec.num_bytes for phase in layout.phases for region in layout.regions if region.spec.is_live_in(phase)
    ]
    return {"arena": peak_bytes([layout.arena_bytes]), "per_stage": peak_bytes(apart)}


def whole_recipe(bench: Bench, problems: Sequence[Problem]) -> dict[str, Any]:
    """Cold bake of all problems, discovery on both GPUs, and every kernel executed against fp32."""
    baked, keys = bench.bake(problems, "recipe")
    discoverer = bench.discoverer("recipe")
    warm = bench.folder / "recipe" / "deep_gemm"
    started_s = time.monotonic()
    real = discover_on_real_gpu(discoverer, problems, say("real discovery"))
    real_s = time.monotonic() - started_s
    discovery, _ = discoverer.check(problems, warm, say("check"))
    checked = check_on_gpu(discoverer, problems, discovery, warm, say("numerics"))
    if real != keys or checked.faults:
        raise SystemExit(f"not proved: {sorted(real ^ keys)} {checked.faults}")
    return {
        "bake": asdict(baked),
        "real_discovery_s": real_s,
        "virtual_discovery_s": baked.discovery_s,
        "keys": len(keys),
        "executed": checked.num_executed,
        "max_relative_error": checked.max_relative_error,
    }


def show(compared: Compared, left: Sequence[str], memory_bytes: dict[str, int], proof: dict[str, Any] | None) -> None:
    """Print one table."""
    same = compared.preheat
    table = Table("Preheat on the target GPU", ("what", "server-style", "Preheat", "ratio"))
    few = f"{len(compared.problems)} problems, {same.m_values} M, {compared.num_keys} kernels"
    if compared.server_cold_s is not None and compared.cold_ratio is not None:
        cold_row = f"{compared.server_cold_s:.1f} s", f"{same.wall_s:.1f} s", f"{compared.cold_ratio:.1f}"
        table.add(f"cold: {few}", *cold_row)
    else:
        table.add(f"cold bake: {few}", "", f"{same.wall_s:.1f} s", "")
    warm = f"{compared.server_cached_s:.1f} s", f"{compared.preheat_check_s:.1f} s", f"{compared.warm_ratio:.1f}"
    table.add("all cached: execution only against re-verification, same problems", *warm)
    apart = memory_bytes["per_stage"] / 2**20
    arena = memory_bytes["arena"] / 2**20
    memory_row = f"{apart:.0f}", f"{arena:.0f}", f"{apart / arena:.2f}"
    table.add("peak device memory, MiB: buffers per stage against one arena", *memory_row)
    if proof is not None:
        seconds = f"{proof['real_discovery_s']:.1f} s real GPU", f"{proof['virtual_discovery_s']:.1f} s virtual GPU"
        table.add(f"discovery of the whole recipe: the same {proof['keys']} keys", *seconds, "")
        error = f"{proof['max_relative_error']:.1e}"
        table.add(f"{proof['executed']} kernels executed against fp32: largest relative error", "", error, "")
    print(table.render())
    print(f"compared: {', '.join(compared.problems)}")
    if left:
        print(f"not compared, for want of time: {', '.join(left)}")


def main() -> None:
    """Measure, print one table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--parallel", default="dp8_ep8")
    parser.add_argument("--budget-s", type=float, default=400.0)
    parser.add_argument("--no-proof", action="store_true")
    parser.add_argument("--warm-only", action="store_true")
    options = parser.parse_args()
    target = choice("target", "h200", Target)
    if (mismatch := gpu_mismatch(target)) is not None:
        raise SystemExit(f"this benchmark needs an H200: {mismatch}")
    model = choice("model", "deepseek", Model)
    parallel = choice("parallel", options.parallel, Parallel)
    server = choice("server", "sglang", SERVERS["sglang"].flags)
    workload = derive(model, parallel, server, target)
    folder = Path(tempfile.mkdtemp(prefix="preheat-bench-"))
    try:
        bench = Bench(target, find_toolkit(), default_workers(), folder)
        proof = None if options.no_proof else whole_recipe(bench, workload.problems)
        if options.warm_only:
            baked, _ = bench.bake(workload.problems, "compared")
            cache = bench.folder / "server" / "deep_gemm"
            shutil.copytree(bench.folder / "compared" / "deep_gemm", cache)
            compared = compare_warm(bench, workload.problems, cache, baked, None)
            left = []
        else:
            compared, left = compare(bench, workload.problems, options.budget_s)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    layout = plan_buffers(workload, parallel, AdapterKind.auto, on_gpu=True).layout
    memory_bytes = memory(layout)
    versions = {name: distribution_version(name) for name in ("torch", "sgl-deep-gemm")}
    print(f"{num_cores()} cores, {torch.cuda.get_device_name()}, {bench.toolkit.describe()}, {versions}")
    show(compared, left, memory_bytes, proof)
    report = {"versions": versions, "cores": num_cores(), "nvcc": bench.toolkit.describe(), "proof": proof}
    report |= {"compared": asdict(compared), "not_compared": left, "memory_bytes": memory_bytes}
    report |= {"cold_ratio": compared.cold_ratio, "warm_ratio": compared.warm_ratio}
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
