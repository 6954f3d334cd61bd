"""The stage after real buffers and a real dummy forward; discovery is a fake that answers from the cache's entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipeline.deepgemm.discovery import Discoverer, Discovery, ProblemKernels
from pipeline.engine.children import Children
from pipeline.engine.context import View
from pipeline.engine.errors import HostError, VerifyError
from pipeline.engine.jobs import OnProgress
from pipeline.engine.stage import Result, Stage
from pipeline.figures import MemoryFigures, VerifyFigures
from pipeline.recipe import DiscoverySource, Recipe
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.slots import BAKED, DISCOVERER, PROOF, Baked
from pipeline.virtual_gpu.build import VirtualGpu
from stages.adapter import Adapter
from stages.align import Align
from stages.allocate import Allocate
from stages.autotune import Autotune
from stages.forward import Forward
from stages.plan import Plan
from stages.verify import (
    DiscoverOn,
    Verify,
)
from tests.fake_toolkit import cubin
from tests.servers.recipes import target
from tests.servers.shared.places import Place
from tests.stages.runs import Bench, completed, figures_of, recipe_of, recipe_without_rules

# Between the SM counts of real GPUs, so that hardware checks are skipped wherever the tests run.
NOBODYS_GPU = replace(target(), num_sms=130)
PROBLEM = Problem(
    kernel=Kernel.DENSE, n=512, k=512, groups=1, m=MList.up_to(16), linears=("linear",), layers=(0,), ranks=(0,)
)
KEY = "gemm.a"
NOTHING_BAKED = Baked(sources=[], problems=())


@dataclass(frozen=True, slots=True)
class OneKernel(Discoverer):
    """Finds one kernel for all problems and every M, and lacks it where the published cache has no such entry."""

    def check(
        self, problems: Sequence[Problem], published: Path, on_progress: OnProgress
    ) -> tuple[Discovery, tuple[str, ...]]:
        on_progress(16, 16)
        kernels = ProblemKernels(((1, 16, (KEY,)),), launched=16)
        missing = () if (published / "cache" / KEY).is_dir() else (KEY,)
        return Discovery(tuple(kernels for _ in problems), seconds=0.25, peak_bytes=1), missing


@dataclass(kw_only=True)
class Greedy(Stage):
    """Promised to allocate nothing, and allocates 64 bytes."""

    allocates_nothing = True

    def run(self, ctx: View) -> Result:
        torch.zeros(64, dtype=torch.uint8)
        return Result("64 bytes")


@dataclass(kw_only=True)
class Generous(Stage):
    """Promised nothing, and allocates."""

    def run(self, ctx: View) -> Result:
        torch.zeros(64, dtype=torch.uint8)
        return Result("64 bytes")


def nobodys_recipe(**options: Any) -> Recipe:
    """The small recipe for a GPU that no machine has."""
    return replace(recipe_of(), target=NOBODYS_GPU, **options)


def bench_of(folder: Path, baked: Baked = NOTHING_BAKED, recipe: Recipe | None = None) -> Bench:
    """A bench in which everything ran that verify looks at."""
    toolkit = Place(folder).toolkit
    discoverer = OneKernel(VirtualGpu(folder / "gpu", NOBODYS_GPU), toolkit, Children(), folder / "scratch")
    bench = Bench(recipe or nobodys_recipe(), folder=folder, seeds={BAKED: baked, DISCOVERER: discoverer})
    bench.run(Plan(), Allocate(), Adapter(), Align(), Forward(), Autotune())
    return bench


def publish(folder: Path, content: bytes) -> None:
    """Put an entry of one kernel into the output's cache."""
    entry = folder / "out" / "deep_gemm" / "cache" / KEY
    entry.mkdir(parents=True)
    (entry / "kernel.cu").write_text("source")
    (entry / "kernel.cubin").write_bytes(content)


def failed_figures(bench: Bench, stage: Verify) -> tuple[VerifyFigures, MemoryFigures]:
    """What a verify that must fail reports."""
    with pytest.raises(VerifyError) as caught:
        bench.run(stage)
    verified, memory = caught.value.figures
    assert isinstance(verified, VerifyFigures)
    assert isinstance(memory, MemoryFigures)
    return verified, memory


def test_what_nobody_measured_is_null_and_not_zero(tmp_path: Path) -> None:
    result = completed(bench_of(tmp_path).run(Verify()))
    assert figures_of(VerifyFigures, result) == VerifyFigures(
        guards_ok=True, addresses_ok=True, seq_lens_ok=True, batch_ok=True, faults=[]
    )
    assert result.summary == (
        "0 M launched again, 0 compiles; 0 cubins good; buffers good; numerics not checked: nothing to run"
    )


def test_memory_after_the_arena_is_reported(tmp_path: Path) -> None:
    memory = figures_of(MemoryFigures, completed(bench_of(tmp_path).run(Verify())))
    assert memory == MemoryFigures(allocations_after=0, not_in_arena={}, peak_device_bytes=None)


def test_a_complete_cache_is_launched_again_and_its_cubins_are_checked(tmp_path: Path) -> None:
    publish(tmp_path, cubin(90))
    bench = bench_of(tmp_path, Baked(sources=[], problems=(PROBLEM,)))
    result = completed(bench.run(Verify()))
    figures = figures_of(VerifyFigures, result)
    assert (figures.coverage_m_values, figures.coverage_compiles, figures.cubins_checked) == (16, 0, 1)
    assert bench.context.read(PROOF).keys_of_problem == {PROBLEM.name: 1}
    assert result.summary.startswith("16 M launched again, 0 compiles; 1 cubins good; buffers good; numerics not")
    last = bench.events[-1]
    assert (last.stage, last.data["what"], last.data["done"], last.data["total"]) == ("verify", "M launched", 16, 16)


def test_without_the_target_gpu_every_figure_of_the_hardware_is_null_with_the_reason(tmp_path: Path) -> None:
    publish(tmp_path, cubin(90))
    result = bench_of(tmp_path, Baked(sources=[], problems=(PROBLEM,))).run(Verify())
    figures = figures_of(VerifyFigures, result)
    assert figures.hardware_skipped
    assert (figures.cubins_loaded, figures.numerics_checked, figures.without_reference) == (None, None, None)
    assert (figures.max_relative_error, figures.real_keys, figures.tactics_replayed) == (None, None, None)


def test_a_kernel_that_lacks_and_a_damaged_one_are_both_named(tmp_path: Path) -> None:
    publish(tmp_path, cubin(90)[:-10])
    (tmp_path / "out" / "deep_gemm" / "cache" / KEY).rename(tmp_path / "out" / "deep_gemm" / "cache" / "gemm.b")
    bench = bench_of(tmp_path, Baked(sources=[], problems=(PROBLEM,)))
    figures, _ = failed_figures(bench, Verify())
    lacking, damaged = figures.faults
    assert lacking == f"{KEY} is not in the cache: dense 512x512 would compile it at M 1 to 16"
    assert "gemm.b" in damaged
    assert "is truncated" in damaged
    assert (figures.coverage_compiles, figures.guards_ok) == (1, True)
    assert bench.context.read(PROOF).keys_of_problem == {PROBLEM.name: 1}


def test_the_cubins_of_what_only_a_server_asked_for_are_checked(tmp_path: Path) -> None:
    publish(tmp_path, cubin(100))
    figures, _ = failed_figures(bench_of(tmp_path, recipe=nobodys_recipe(discovery=DiscoverySource.server)), Verify())
    (fault,) = figures.faults
    assert "is for sm_100" in fault
    assert (figures.cubins_checked, figures.coverage_m_values) == (1, None)


def test_more_faults_than_fit_are_counted_and_the_report_has_them_all(tmp_path: Path) -> None:
    publish(tmp_path, cubin(90))
    entry = tmp_path / "out" / "deep_gemm" / "cache" / KEY
    for number in range(12):
        (entry / f"stranger{number}").touch()
    bench = bench_of(tmp_path, Baked(sources=[], problems=(PROBLEM,)))
    with pytest.raises(VerifyError, match="and 2 more; report.json has them all$") as caught:
        bench.run(Verify())
    figures = caught.value.figures[0]
    assert isinstance(figures, VerifyFigures)
    assert len(figures.faults) == 12


def test_discovery_on_a_gpu_that_is_not_there_is_a_host_error(tmp_path: Path) -> None:
    publish(tmp_path, cubin(90))
    bench = bench_of(tmp_path, Baked(sources=[], problems=(PROBLEM,)))
    with pytest.raises(HostError, match="verify.discover_on=real needs the target GPU"):
        bench.run(Verify(discover_on=DiscoverOn.real))


def test_a_stage_that_promised_to_allocate_nothing_and_did_is_a_fault_by_name(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.run(Greedy(), Generous())
    figures, memory = failed_figures(bench, Verify())
    assert figures.faults == ["stage greedy allocated 64 bytes after `allocate`"]
    assert memory.allocations_after == 64


def test_a_stage_that_promised_nothing_may_allocate(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.run(Generous())
    assert bench.allocated["generous"] == 64
    assert figures_of(MemoryFigures, completed(bench.run(Verify()))).allocations_after == 0


def test_without_rules_there_are_no_buffers_and_every_cubin_is_checked(tmp_path: Path) -> None:
    publish(tmp_path, cubin(90))
    result = completed(bench_of(tmp_path, recipe=recipe_without_rules(target=NOBODYS_GPU)).run(Verify()))
    figures = figures_of(VerifyFigures, result)
    assert (figures.cubins_checked, figures.guards_ok, figures.seq_lens_ok, figures.batch_ok) == (1, None, None, None)
    assert "1 cubins good; no buffers without rules" in result.summary
