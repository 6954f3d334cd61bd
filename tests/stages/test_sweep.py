"""The stage over kernels that a server asked for, and once over the rules' with the real deep_gemm; a fake nvcc."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.deepgemm.discovery import Discoverer
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.errors import HostError, IncompleteError, StageError
from pipeline.figures import SweepFigures
from pipeline.recipe import DiscoverySource, ToolkitChoice
from pipeline.servers.shared.answer import ServerAnswer
from pipeline.servers.shared.start import AskedProblem
from pipeline.slots import ANSWER, BAKED, DISCOVERER, TOOLKIT, WORKLOAD, Baked
from pipeline.virtual_gpu.build import VirtualGpu
from stages.find_toolkit import FindToolkit
from stages.plan import Plan
from stages.sweep import Sweep
from tests.deepgemm.test_bake import server_stubs
from tests.fake_toolkit import make_toolkit
from tests.servers.recipes import tiny
from tests.servers.shared.places import answer
from tests.stages.runs import Bench, completed, figures_of, recipe_of, skipped

ONE_PROBLEM = {AskedProblem("GEMM_NT_F8F8BF16", 2112, 7168, 1): (0,)}


def server_answer(folder: Path, *keys: str, faults: tuple[str, ...] = ()) -> ServerAnswer:
    """What a server answered that asked for these kernels."""
    return answer(stub_cache=server_stubs(folder / "stubs", keys), problems=ONE_PROBLEM, faults=faults)


def bench_of(folder: Path, given: ServerAnswer | None, *, reject: str = "") -> Bench:
    """A bench with discovery=server before sweep; nothing is discovered, so the virtual GPU is never loaded."""
    toolkit = find_toolkit(str(make_toolkit(folder / "cuda", reject=reject).home))
    gpu = VirtualGpu(folder / "gpu", recipe_of().target)
    seeds = {TOOLKIT: toolkit, DISCOVERER: Discoverer(gpu, toolkit, Children(), folder / "scratch")}
    recipe = replace(recipe_of(), discovery=DiscoverySource.server)
    bench = Bench(recipe, folder=folder, seeds=seeds if given is None else seeds | {ANSWER: given})
    bench.run(Plan())
    return bench


def published(bench: Bench) -> list[str]:
    """The keys in the output's cache."""
    return sorted(entry.name for entry in (bench.places.warm_cache / "cache").iterdir())


def test_a_recipe_without_problems_bakes_nothing_and_says_why(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, None)
    result = skipped(bench.run(Sweep()))
    assert result.reason == "no problem of this recipe goes to DeepGEMM; see the plan for the reasons"
    assert figures_of(SweepFigures, result) == SweepFigures(problems=0)
    assert bench.context.read(BAKED) == Baked(sources=[], problems=())
    assert not bench.places.output.exists()


def test_the_rules_of_a_model_without_fp8_bake_nothing_either(tmp_path: Path) -> None:
    toolkit = find_toolkit(str(make_toolkit(tmp_path / "cuda").home))
    gpu = VirtualGpu(tmp_path / "gpu", recipe_of().target)
    seeds = {TOOLKIT: toolkit, DISCOVERER: Discoverer(gpu, toolkit, Children(), tmp_path / "scratch")}
    bench = Bench(recipe_of(tiny(quantization_config=None)), folder=tmp_path, seeds=seeds)
    result = skipped(bench.run(Plan(), Sweep()))
    assert "no problem of this recipe goes to DeepGEMM" in result.reason


def test_what_the_server_asked_for_is_compiled_and_published(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, server_answer(tmp_path, "gemm.a", "gemm.b"))
    result = completed(bench.run(Sweep(jobs=1)))
    assert published(bench) == ["gemm.a", "gemm.b"]
    baked = bench.context.read(BAKED)
    assert [source.key for source in baked.sources] == ["gemm.a", "gemm.b"]
    assert baked.problems == (), "with discovery=server the rules' problems are left out"
    assert bench.context.read(WORKLOAD).problems
    figures = figures_of(SweepFigures, result)
    assert (figures.keys, figures.compiled, figures.reused, figures.published) == (2, 2, 0, 2)
    assert (figures.problems, figures.m_values, figures.discovery_s) == (None, None, None), "nothing was discovered"
    assert figures.farm_jobs == 1
    assert result.summary.startswith("1 problems that the server asked for need 2 kernels: 2 compiled in ")


def test_a_second_run_compiles_nothing_and_keeps_what_is_published(tmp_path: Path) -> None:
    given = server_answer(tmp_path, "gemm.a", "gemm.b")
    bench_of(tmp_path, given).run(Sweep())
    figures = figures_of(SweepFigures, bench_of(tmp_path, given).run(Sweep()))
    assert (figures.compiled, figures.reused) == (0, 2)
    assert (figures.published, figures.kept, figures.replaced) == (0, 2, [])


def test_a_kernel_that_nvcc_rejects_fails_the_stage_and_the_others_are_published(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, server_answer(tmp_path, "gemm.a", "gemm.b"), reject="gemm<1>")
    with pytest.raises(StageError, match="nvcc rejected 1 of 2 kernels; the others are cached") as caught:
        bench.run(Sweep())
    assert published(bench) == ["gemm.a"]
    (figures,) = caught.value.figures
    assert isinstance(figures, SweepFigures)
    assert (figures.failed, figures.missing) == (1, 1)
    assert bench.context.writer(BAKED) == "sweep", "verify may look at what is there"


def test_an_incomplete_answer_leaves_the_bake_incomplete_and_the_kernels_cached(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, server_answer(tmp_path, "gemm.a", faults=("the server crashed",)))
    with pytest.raises(IncompleteError, match="1 kernels are cached, but .* incomplete: the server crashed"):
        bench.run(Sweep())
    assert published(bench) == ["gemm.a"]


def test_a_disk_too_full_is_named_before_anything_is_compiled(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, server_answer(tmp_path, "gemm.a"))
    with pytest.raises(HostError, match="this run may need"):
        bench.run(Sweep(bytes_per_kernel=1 << 50))
    assert not (tmp_path / "cuda" / "compiled.log").exists()


def test_progress_counts_the_kernels(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, server_answer(tmp_path, "gemm.a", "gemm.b"))
    bench.run(Sweep())
    progress = [(event.stage, event.data["what"], event.data["done"], event.data["total"]) for event in bench.events]
    assert progress[-1] == ("sweep", "kernels", 2, 2)


def test_both_lists_are_baked_and_told_apart(tmp_path: Path) -> None:
    choice = ToolkitChoice(cuda_home=str(make_toolkit(tmp_path / "cuda").home))
    recipe = replace(recipe_of(fast_warmup=True), toolkit=choice, discovery=DiscoverySource.both)
    bench = Bench(recipe, folder=tmp_path, seeds={ANSWER: server_answer(tmp_path, "gemm.only_the_server")})
    result = completed(bench.run(Plan(), FindToolkit(), Sweep()))
    problems = bench.context.read(WORKLOAD).problems
    figures = figures_of(SweepFigures, result)
    assert figures.server_only_keys == ["gemm.only_the_server"]
    assert sorted([*(figures.rules_only_keys or []), "gemm.only_the_server"]) == published(bench)
    assert figures.problems == len(problems)
    assert figures.m_values == sum(len(problem.m) for problem in problems)
    assert bench.context.read(BAKED).problems == problems


@pytest.mark.parametrize(
    ("jobs", "errors"),
    [
        (None, []),
        (1, []),
        (0, ["sweep.jobs must be at least 1, got 0"]),
        (-2, ["sweep.jobs must be at least 1, got -2"]),
    ],
    ids=str,
)
def test_fewer_than_one_compiler_is_refused_before_the_run(jobs: int | None, errors: list[str]) -> None:
    assert Sweep(jobs=jobs).config_errors(recipe_of()) == errors
