"""Discover every kernel that the problems need, compile what the store lacks, publish the warm cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.asking.layout import Asked
from pipeline.deepgemm.cache import publish, read_sources
from pipeline.deepgemm.compiler import Source
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
from pipeline.slots import ASKED, BAKED, CHILDREN, EVENTS, RECIPE, WORKLOAD, Baked
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
    may_read = (ASKED,)
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
        "rules_only_keys",
        "server_only_keys",
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
        recipe = ctx[RECIPE]
        children = ctx[CHILDREN]
        problems = ctx[WORKLOAD].problems if recipe.discovery.uses_rules else ()
        progress = Reporter(ctx[EVENTS], "sweep")
        toolkit, discoverer = prepare(recipe, children)
        warm_cache = Path(recipe.output.dir).absolute() / WARM_CACHE
        server = ctx.get(ASKED)
        asked = server.asked if server is not None else None
        if recipe.mode is Mode.verify and (problems or server is not None):
            if not (warm_cache / "cache").is_dir():
                raise ConfigError(f"output.dir: {warm_cache} holds no cache to verify; bake it first with mode=run")
            ctx[BAKED] = Baked(warm_cache, toolkit, discoverer, [], problems)
            return Skipped("mode=verify compiles nothing; verify launches every M again", {"problems": len(problems)})
        if not problems and asked is None:
            ctx[BAKED] = Baked(warm_cache, toolkit, discoverer, [], problems)
            return Skipped("no problem of this recipe goes to DeepGEMM; see the plan for the reasons", {"problems": 0})
        store_dir = Path(recipe.store.dir).absolute()
        needed = self._needed_bytes(problems, asked)
        require_writable(store_dir, key="store.dir", needed_bytes=needed)
        require_writable(warm_cache, key="output.dir", needed_bytes=needed)
        found = self._discover(problems, discoverer, store_dir, progress) if problems else None
        stub_caches = [found.stub_cache] if found is not None else []
        stub_caches += [asked.stub_cache] if asked is not None else []
        farm = Farm(toolkit, Store(store_dir), children, self.jobs or default_workers(), recipe.target.sm)
        sources_of = {cache: read_sources(cache) for cache in stub_caches}
        sources = list({source.key: source for each in sources_of.values() for source in each}.values())
        compiled = farm.compile(sources, lambda done: progress("kernels", _finished(done), len(sources)))
        for cache, held in sources_of.items():
            cubins = {source.key: compiled.cubins[source.key] for source in held if source.key in compiled.cubins}
            publish(cache, cubins, warm_cache, toolkit=toolkit, sm=recipe.target.sm)
        ctx[BAKED] = Baked(warm_cache, toolkit, discoverer, sources, problems)
        figures = farm_figures(compiled, sources, farm)
        if found is not None:
            figures |= discovery_figures(problems, found)
        if found is not None and asked is not None:
            figures |= difference_of_keys(*({source.key for source in held} for held in sources_of.values()))
        return concluded(problems, found, compiled, asked, figures)

    def _needed_bytes(self, problems: Sequence[Problem], asked: Asked | None) -> int:
        count = len(problems) + (len(asked.problems) if asked is not None else 0)
        return self.bytes_per_kernel * KERNELS_PER_PROBLEM * count

    def _discover(
        self, problems: Sequence[Problem], discoverer: Discoverer, root: Path, progress: Reporter
    ) -> Remembered:
        digest = discovery_digest(problems, discoverer)
        return remembered(
            root, digest, lambda cache: discoverer.record(problems, cache, lambda a, b: progress("M launched", a, b))
        )


def farm_figures(done: Compiled, sources: Sequence[Source], farm: Farm) -> dict[str, Any]:
    """What was compiled, by what and how fast."""
    figures: dict[str, Any] = {
        "keys": len(sources),
        "compiled": done.num_compiled,
        "reused": done.num_reused,
        "failed": len(done.failed),
        "missing": len({source.key for source in sources} - set(done.cubins)),
        "farm_wall_s": round(done.wall_s, 3),
        "farm_cpu_s": round(done.cpu_s, 3),
        "farm_jobs": farm.num_workers,
        "nvcc": farm.toolkit.describe(),
    }
    return figures | ({"errors": done.failed} if done.failed else {})


def discovery_figures(problems: Sequence[Problem], found: Remembered) -> dict[str, Any]:
    """What the rules' problems came to."""
    discovery = found.discovery
    return {
        "problems": len(problems),
        "m_values": discovery.num_launched,
        "not_in_library": list(discovery.unavailable),
        "discovery_s": round(discovery.seconds, 3) if found.is_new else None,
        "discovery_reused": not found.is_new,
        "discovery_peak_bytes": discovery.peak_bytes,
    }


def difference_of_keys(by_rules: set[str], by_server: set[str]) -> dict[str, Any]:
    """Kernels that only one of the two lists leads to."""
    return {
        "rules_only_keys": sorted(by_rules - by_server),
        "server_only_keys": sorted(by_server - by_rules),
    }


def concluded(
    problems: Sequence[Problem], found: Remembered | None, done: Compiled, asked: Asked | None, figures: dict[str, Any]
) -> Result:
    """The stage's result; StageError and IncompleteError say what is not there."""
    num_keys = figures["keys"]
    if done.failed:
        shown = "\n".join(f"{key}: {message}" for key, message in list(done.failed.items())[:3])
        raise StageError(
            f"nvcc rejected {len(done.failed)} of {num_keys} kernels; the others are cached\n{shown}", figures=figures
        )
    if found is not None and found.discovery.unavailable:
        lacking = sum(problem.unavailable is not None for problem in found.discovery.problems)
        raise IncompleteError(
            f"{lacking} of {len(problems)} problems cannot be launched: {'; '.join(found.discovery.unavailable)}; the "
            "others are cached. Install the deep_gemm that the server ships (requirements.txt has SGLang 0.5.23's)",
            figures=figures,
        )
    if asked is not None and asked.faults:
        told = "\n".join(asked.faults)
        raise IncompleteError(
            f"{num_keys} kernels are cached, but the server's list is incomplete: {told}", figures=figures
        )
    launched = f"{found.discovery.num_launched} M of {len(problems)} problems" if found is not None else ""
    by_server = f"{len(asked.problems)} problems that the server asked for" if asked is not None else ""
    who = " and ".join(filter(None, [launched, by_server]))
    compiled = f"{done.num_compiled} compiled in {done.wall_s:.1f} s, {done.num_reused} reused"
    return Result(f"{who} need {num_keys} kernels: {compiled}", figures)


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
