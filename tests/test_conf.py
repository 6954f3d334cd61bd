from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from pipeline.engine import config
from pipeline.engine.graph import build_graph, order
from pipeline.recipe import Mode, Recipe
from pipeline.slots import SEEDED
from run import select
from stages import all_stages
from stages.plan import make_plan, plan_json

CONF = Path(__file__).parents[1] / "conf"
FILES = sorted(CONF.rglob("*.yaml"))
OPTIONS = [(path.parent.name, path.stem) for path in FILES if path.parent != CONF]
MAX_LINES = 20


def options_of(group: str) -> list[str]:
    return [option for name, option in OPTIONS if name == group]


def compose(*overrides: str) -> Recipe:
    config.register(config.make_schema(Recipe, all_stages()))
    return config.to_recipe(config.composed(overrides, CONF))


def test_the_default_recipe_is_deepseek_on_four_pipeline_stages():
    defaults = OmegaConf.load(CONF / "config.yaml")["defaults"]
    assert {"model": "deepseek"} in defaults
    assert {"parallel": "pp4"} in defaults
    recipe = compose()
    assert recipe.mode is Mode.run
    assert (recipe.model.name, recipe.parallel.name) == ("deepseek", "pp4")
    assert recipe.name == "deepseek-pp4-sglang-h200"
    assert recipe.output.dir == f"warm/{recipe.name}"


@pytest.mark.parametrize("option", options_of("experiment"))
def test_every_experiment_changes_the_recipe(option: str):
    assert compose(f"experiment={option}") != compose()


NAMED = [(group, option) for group, option in OPTIONS if group != "experiment"]


@pytest.mark.parametrize(("group", "option"), NAMED, ids=[f"{group}={option}" for group, option in NAMED])
def test_every_option_of_every_group_composes_and_names_itself(group: str, option: str):
    part = getattr(compose(f"{group}={option}"), group)
    # A device has a kind where the others have a name.
    name = part.kind.name if group == "device" else part.name
    assert name == option


@pytest.mark.parametrize("option", options_of("pipeline"))
def test_every_pipeline_builds_its_graph(option: str):
    recipe = compose(f"pipeline={option}")
    needs = {name: node.needs for name, node in recipe.pipeline.stages.items()}
    graph = build_graph(select(recipe, needs), needs, seeded=SEEDED)
    assert order(graph)[0] == "plan"
    assert set(graph.nodes) == set(needs)


@pytest.mark.parametrize("target", options_of("target"))
@pytest.mark.parametrize("parallel", options_of("parallel"))
def test_every_layout_of_deepseek_has_a_plan_for_every_target(parallel: str, target: str):
    recipe = compose("model=deepseek", f"parallel={parallel}", f"target={target}", "mode=plan")
    workload, buffers = make_plan(recipe)
    plan = plan_json(workload, buffers, {})
    assert workload.num_ranks == recipe.parallel.num_ranks
    assert plan["problems"]
    assert plan["buffers"]["arena_bytes"] > 0
    planned = {rank for problem in plan["problems"] for rank in problem["ranks"]}
    assert planned == set(range(recipe.parallel.num_ranks))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONF)))
def test_a_file_of_conf_is_short_and_says_first_what_it_is(path: Path):
    lines = path.read_text().splitlines()
    assert len(lines) <= MAX_LINES, f"{path}: {len(lines)} lines"
    assert lines[0].startswith("# ")


def test_every_group_that_the_default_recipe_names_has_options():
    defaults = OmegaConf.load(CONF / "config.yaml")["defaults"]
    groups = {next(iter(entry)) for entry in defaults if not isinstance(entry, str)}
    assert {str(group).removeprefix("optional ") for group in groups} == {group for group, _ in OPTIONS}
