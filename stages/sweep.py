"""Discover every kernel that the problems need, compile what the store lacks, publish the warm cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.deepgemm.cache import publish, read_sources
from pipeline.deepgemm.discovery import Discoverer
from pipeline.deepgemm.farm import Compiled, Farm, default_workers
from pipeline.deepgemm.memo import Remembered, discovery_digest, package_folder, remembered
from pipeline.deepgemm.store import Store
from pipeline.deepgemm.toolkit import Toolkit, find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.context import View
from pipeline.engine.errors import ConfigError, IncompleteError, StageError
from pipeline.engine.events import Reporter
from pipeline.engine.host import require_writable
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.recipe import Mode, Recipe
from pipeline.slots import BAKED, CHILDREN, EVENTS, RECIPE, WORKLOAD, Baked
from pipeline.virtual_gpu.build import build
from pipeline.workload.problems import Problem

# A discovery of many problems finds fewer than this many kernels per problem; it only sizes the disk check.
KERNELS_PER_PROBLEM = 32
WARM_CACHE = "deep_gemm"


@dataclass(kw_only=True)
class Sweep(Stage):
    """Uses CPU cores only; runs beside the stages that hold the device."""

    jobs: int | None = None
    """Compilers at a time; None means as many as cores and free memory allow."""
    bytes_per_kernel: int = 128 * 1024
    """Disk that one kernel may take, for the check before compiling; the largest seen is about 100 KiB."""

    reads = (RECIPE, EVENTS, CHILDREN, WORKLOAD)
    writes = (BAKED,)
    resource = Resource.CORES
    section = "sweep"
    figures = (
        "problems",
        "m_values",
        "keys",
        "compiled",
        "reused",
        "failed",
        "missing",
        "not_in_library",
        "discovery_s",
        "discovery_reused",
        "discovery_peak_bytes",
        "farm_wall_s",
        "farm_cpu_s",
        "farm_jobs",
        "nvcc",
    )

    def problems(self) -> list[str]:
        """A number of compilers below one."""
        return [f"sweep.jobs must be at least 1, got {self.jobs}"] if self.jobs is not None and self.jobs < 1 else []

    def run(self, ctx: View) -> Result | Skipped:
        """StageError when nvcc rejects a kernel; the others are published all the same.

        HostError without nvcc, with one too old for the target, or without room on the disk.
        """
        recipe, problems, children = ctx[RECIPE], ctx[WORKLOAD].problems, ctx[CHILDREN]
        progress = Reporter(ctx[EVENTS], "sweep")
        toolkit, discoverer = prepare(recipe, children)
        warm_cache = Path(recipe.output.dir).absolute() / WARM_CACHE
        if not problems:
            ctx[BAKED] = Baked(warm_cache, toolkit, discoverer, [])
            return Skipped("no problem of this recipe goes to DeepGEMM; see the plan for the reasons", {"problems": 0})
        if recipe.mode is Mode.verify:
            if not (warm_cache / "cache").is_dir():
                raise ConfigError(f"output.dir: {warm_cache} holds no cache to verify; bake it first with mode=run")
            ctx[BAKED] = Baked(warm_cache, toolkit, discoverer, [])
            return Skipped("mode=verify compiles nothing; verify launches every M again", {"problems": len(problems)})
        needed = self.bytes_per_kernel * KERNELS_PER_PROBLEM * len(problems)
        store_dir = Path(recipe.store.dir).absolute()
        require_writable(store_dir, key="store.dir", needed_bytes=needed)
        require_writable(warm_cache, key="output.dir", needed_bytes=needed)
        found = self._discover(problems, discoverer, store_dir, progress)
        farm = Farm(toolkit, Store(store_dir), children, self.jobs or default_workers(), recipe.target.sm)
        sources = read_sources(found.stub_cache)
        compiled = farm.compile(sources, lambda done: progress("kernels", _finished(done), len(sources)))
        publish(found.stub_cache, compiled.cubins, warm_cache, toolkit=toolkit, sm=recipe.target.sm)
        ctx[BAKED] = Baked(warm_cache, toolkit, discoverer, sources)
        return self._result(problems, found, compiled, farm)

    def _discover(
        self, problems: Sequence[Problem], discoverer: Discoverer, root: Path, progress: Reporter
    ) -> Remembered:
        digest = discovery_digest(problems, discoverer)
        return remembered(
            root, digest, lambda cache: discoverer.record(problems, cache, lambda a, b: progress("M launched", a, b))
        )

    def _result(self, problems: Sequence[Problem], found: Remembered, done: Compiled, farm: Farm) -> Result:
        discovery = found.discovery
        figures: dict[str, Any] = {
            "problems": len(problems),
            "m_values": discovery.num_launched,
            "keys": len(discovery.keys),
            "compiled": done.num_compiled,
            "reused": done.num_reused,
            "failed": len(done.failed),
            "missing": len(set(discovery.keys) - set(done.cubins)),
            "not_in_library": list(discovery.unavailable),
            "discovery_s": round(discovery.seconds, 3) if found.is_new else None,
            "discovery_reused": not found.is_new,
            "discovery_peak_bytes": discovery.peak_bytes,
            "farm_wall_s": round(done.wall_s, 3),
            "farm_cpu_s": round(done.cpu_s, 3),
            "farm_jobs": farm.num_workers,
            "nvcc": farm.toolkit.describe(),
        }
        if done.failed:
            figures["errors"] = done.failed
            shown = "\n".join(f"{key}: {message}" for key, message in list(done.failed.items())[:3])
            raise StageError(
                f"nvcc rejected {len(done.failed)} of {len(discovery.keys)} kernels; the others are cached\n{shown}",
                figures=figures,
            )
        if discovery.unavailable:
            lacking = sum(problem.unavailable is not None for problem in discovery.problems)
            raise IncompleteError(
                f"{lacking} of {len(problems)} problems cannot be launched: {'; '.join(discovery.unavailable)}; the "
                "others are cached. Install the deep_gemm that the server ships (requirements.txt has SGLang 0.5.23's)",
                figures=figures,
            )
        summary = (
            f"{discovery.num_launched} M of {len(problems)} problems need {len(discovery.keys)} kernels: "
            f"{done.num_compiled} compiled in {done.wall_s:.1f} s, {done.num_reused} reused"
        )
        return Result(summary, figures)


def prepare(recipe: Recipe, children: Children) -> tuple[Toolkit, Discoverer]:
    """The compiler and the virtual GPU of this recipe; HostError when one of them cannot be had."""
    home = recipe.toolkit.deep_gemm
    package_folder(home=home)
    toolkit = find_toolkit(recipe.toolkit.cuda_home)
    toolkit.require(recipe.target)
    store_dir = Path(recipe.store.dir).absolute()
    require_writable(store_dir, key="store.dir", needed_bytes=0)
    gpu = build(recipe.target, cache_dir=store_dir / "virtual_gpu", cuda_home=toolkit.cuda_home)
    where = None if home is None else str(Path(home).absolute())
    return toolkit, Discoverer(gpu, toolkit, children, store_dir / "scratch", deep_gemm=where)


def _finished(done: Compiled) -> int:
    return len(done.cubins) + len(done.failed)
