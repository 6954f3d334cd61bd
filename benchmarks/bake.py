"""A server-style serial sweep against Preheat cold and warm, in one run on one machine.

    python benchmarks/bake.py [--json FILE] [--jobs N] [--only-one-problem]

Serial: one process on the virtual GPU with the real nvcc; each kernel is compiled when its M first comes, as a server
does. Cold: discovery, farm, publish and the coverage check with an empty store. Warm: the same again. Both work on the
same M; at the end the two caches hold the same keys, or the benchmark fails.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar, cast

import yaml
from omegaconf import OmegaConf

sys.path.insert(0, str(Path(__file__).parents[1]))

from pipeline.deepgemm.cache import publish, read_sources
from pipeline.deepgemm.discovery import MAX_SHARDS, Discoverer
from pipeline.deepgemm.farm import Farm, default_workers
from pipeline.deepgemm.memo import discovery_digest, remembered
from pipeline.deepgemm.store import Store
from pipeline.deepgemm.toolkit import Toolkit, find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.host import num_cores
from pipeline.engine.tables import Table
from pipeline.servers.derive import derive
from pipeline.servers.registry import SERVERS
from pipeline.servers.shared.problems import Problem
from pipeline.target import Target
from pipeline.virtual_gpu.build import build
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel

CONF = Path(__file__).parents[1] / "conf"
T = TypeVar("T")


@dataclass(frozen=True)
class Bake:
    """Seconds and counts of one bake by Preheat."""

    wall_s: float
    discovery_s: float
    discovery_peak_bytes: int
    m_values: int
    keys: int
    compiled: int
    farm_wall_s: float
    farm_cpu_s: float
    check_s: float


@dataclass(frozen=True)
class Measured:
    """One row: the same problems three ways."""

    what: str
    serial_s: float
    serial_keys: int
    cold: Bake
    warm: Bake


@dataclass(frozen=True)
class Bench:
    """What every measurement shares."""

    target: Target
    toolkit: Toolkit
    jobs: int
    folder: Path

    def discoverer(self, name: str, *, real_compiler: bool = False) -> Discoverer:
        """A discoverer with folders of its own."""
        gpu = build(self.target, cache_dir=self.folder / "gpu", cuda_home=self.toolkit.cuda_home)
        compiler = self.toolkit.nvcc if real_compiler else None
        workers = 1 if real_compiler else MAX_SHARDS
        scratch = self.folder / name / "scratch"
        return Discoverer(gpu, self.toolkit, Children(), scratch, compiler, max_workers=workers)

    def serial(self, problems: Sequence[Problem], name: str) -> tuple[float, set[str]]:
        """(seconds, keys) of the server-style sweep."""
        cache = self.folder / name / "serial"
        started_s = time.monotonic()
        self.discoverer(name, real_compiler=True).record(problems, cache, say(f"{name}: serial"))
        return time.monotonic() - started_s, {entry.name for entry in (cache / "cache").iterdir()}

    def bake(self, problems: Sequence[Problem], name: str) -> tuple[Bake, set[str]]:
        """One bake over whatever the store of this name holds already."""
        root = self.folder / name / "store"
        discoverer = self.discoverer(name)
        started_s = time.monotonic()
        digest = discovery_digest(problems, discoverer)
        discovery = remembered(
            root, digest, lambda cache: discoverer.record(problems, cache, say(f"{name}: discovery"))
        )
        farm = Farm(self.toolkit, Store(root), discoverer.children, self.jobs, self.target.sm)
        sources = read_sources(discovery.stub_cache)
        done = farm.compile(sources, lambda state: say(f"{name}: farm")(len(state.cubins), len(sources)))
        warm = self.folder / name / "deep_gemm"
        publish(discovery.stub_cache, done.cubins, warm, toolkit=self.toolkit, sm=self.target.sm)
        check_started_s = time.monotonic()
        checked, lacking = discoverer.check(problems, warm, say(f"{name}: check"))
        ended_s = time.monotonic()
        if done.failed or lacking:
            raise SystemExit(f"{name}: not complete: failed {done.failed}, lacking {lacking}")
        launched = discovery.discovery
        result = Bake(
            wall_s=ended_s - started_s,
            discovery_s=launched.seconds if discovery.is_new else 0.0,
            discovery_peak_bytes=max(launched.peak_bytes, checked.peak_bytes),
            m_values=launched.num_launched,
            keys=len(launched.keys),
            compiled=done.num_compiled,
            farm_wall_s=done.wall_s,
            farm_cpu_s=done.cpu_s,
            check_s=ended_s - check_started_s,
        )
        return result, {entry.name for entry in (warm / "cache").iterdir()}

    def measure(self, problems: Sequence[Problem], what: str, name: str) -> Measured:
        """All three ways; the two caches must hold the same keys."""
        serial_s, serial_keys = self.serial(problems, name)
        cold, keys = self.bake(problems, name)
        warm, _ = self.bake(problems, name)
        if keys != serial_keys:
            raise SystemExit(f"{what}: the caches differ: {sorted(keys ^ serial_keys)}")
        return Measured(what, serial_s, len(serial_keys), cold, warm)


def say(what: str) -> Callable[[int, int], None]:
    """Progress on one line of standard error, where that is a terminal."""

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            print(f"\r{what} {done}/{total}   ", end="", file=sys.stderr, flush=True)

    return show


def choice(group: str, name: str, kind: type[T]) -> T:
    """One file of conf/ as its dataclass."""
    content = yaml.safe_load((CONF / group / f"{name}.yaml").read_text())
    # A defaults list says from which dataclass the file is composed.
    loaded = {key: value for key, value in content.items() if key != "defaults"}
    return cast(T, OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(kind), loaded)))


def tables(rows: Sequence[Measured]) -> list[Table]:
    """Ratios, and where the time went."""
    ratios = Table(
        "Server-style serial sweep against Preheat, seconds",
        ("problems", "M", "kernels", "serial", "cold", "warm", "serial/cold", "serial/warm"),
    )
    parts = Table(
        "Where Preheat's time goes",
        (
            "problems",
            "discovery s",
            "M per s",
            "farm s",
            "farm s / (CPU s / cores)",
            "check s",
            "peak MiB of discovery",
        ),
    )
    for row in rows:
        cold = row.cold
        warm = row.warm
        ratio = f"{row.serial_s / cold.wall_s:.2f}", f"{row.serial_s / warm.wall_s:.1f}"
        seconds = f"{row.serial_s:.1f}", f"{cold.wall_s:.1f}", f"{warm.wall_s:.1f}"
        ratios.add(row.what, cold.m_values, cold.keys, *seconds, *ratio)
        limit = cold.farm_wall_s / (cold.farm_cpu_s / num_cores())
        rate = cold.m_values / cold.discovery_s
        figures = f"{cold.discovery_s:.1f}", f"{rate:.0f}", f"{cold.farm_wall_s:.1f}", f"{limit:.2f}"
        parts.add(row.what, *figures, f"{cold.check_s:.1f}", f"{cold.discovery_peak_bytes / 2**20:.0f}")
    return [ratios, parts]


def main() -> None:
    """Measure, print two tables, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--jobs", type=int, default=default_workers())
    parser.add_argument("--only-one-problem", action="store_true")
    options = parser.parse_args()
    model = choice("model", "deepseek", Model)
    parallel = choice("parallel", "pp4", Parallel)
    target = choice("target", "h200", Target)
    server = choice("server", "sglang", SERVERS["sglang"].flags)
    problems = derive(model, parallel, server, target).problems
    folder = Path(tempfile.mkdtemp(prefix="preheat-bench-"))
    try:
        bench = Bench(target, find_toolkit(), options.jobs, folder)
        print(f"{num_cores()} cores, {options.jobs} jobs, {bench.toolkit.describe()}", file=sys.stderr)
        rows = [bench.measure(problems[:1], "2112 x 7168", "one")]
        if not options.only_one_problem:
            rows.append(bench.measure(problems, "deepseek pp4, whole recipe", "recipe"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for table in tables(rows):
        print(table.render())
    report = {"cores": num_cores(), "jobs": options.jobs, "nvcc": bench.toolkit.describe()}
    report |= {"rows": [asdict(row) for row in rows]}
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
