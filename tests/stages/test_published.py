from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.figures import SweepFigures
from pipeline.recipe import DiscoverySource, Recipe
from pipeline.slots import BAKED, WORKLOAD, Baked
from stages.plan import Plan
from stages.published import Published
from tests.servers.recipes import tiny
from tests.stages.runs import Bench, completed, figures_of, recipe_of, skipped


def bf16_recipe() -> Recipe:
    """A model none of whose products goes to DeepGEMM."""
    return recipe_of(tiny(quantization_config=None))


def with_kernels(folder: Path, *keys: str) -> Path:
    """A folder whose output holds an entry for each key."""
    for key in keys:
        (folder / "out" / "deep_gemm" / "cache" / key).mkdir(parents=True)
    return folder


@pytest.mark.parametrize("discovery", DiscoverySource, ids=lambda source: source.name)
def test_an_output_without_a_cache_is_a_config_error_that_says_how_to_get_one(discovery: DiscoverySource) -> None:
    bench = Bench(replace(recipe_of(), discovery=discovery))
    bench.run(Plan())
    with pytest.raises(ConfigError, match=r"^output\.dir: .*/out/deep_gemm holds no cache.*bake it first.*mode=run$"):
        bench.run(Published())


def test_a_cache_that_is_there_stands_for_a_bake_of_the_rules_problems(tmp_path: Path) -> None:
    bench = Bench(folder=with_kernels(tmp_path, "gemm.a", "gemm.b"))
    result = completed(bench.run(Plan(), Published()))
    problems = bench.context.read(WORKLOAD).problems
    assert result.summary == f"2 kernels in {bench.places.warm_cache}"
    assert bench.context.read(BAKED) == Baked(sources=[], problems=problems)
    figures = figures_of(SweepFigures, result)
    assert figures == SweepFigures(problems=len(problems)), "nothing else was measured, so nothing else has a number"


def test_a_recipe_without_problems_has_nothing_to_check() -> None:
    bench = Bench(bf16_recipe())
    result = skipped(bench.run(Plan(), Published()))
    assert "no problem of this recipe goes to DeepGEMM" in result.reason
    assert bench.context.read(BAKED) == Baked(sources=[], problems=())
    assert figures_of(SweepFigures, result).problems == 0


def test_what_a_server_asked_for_is_checked_without_any_problem_of_the_rules(tmp_path: Path) -> None:
    recipe = replace(recipe_of(), discovery=DiscoverySource.server)
    bench = Bench(recipe, folder=with_kernels(tmp_path, "gemm.a"))
    result = completed(bench.run(Plan(), Published()))
    assert bench.context.read(BAKED).problems == ()
    assert figures_of(SweepFigures, result).problems == 0
