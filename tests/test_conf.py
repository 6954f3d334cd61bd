from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from omegaconf import OmegaConf

from pipeline.engine import config
from pipeline.engine.graph import build_graph, order
from pipeline.engine.validation import option_errors, selected_stages
from pipeline.plan.as_json import plan_json
from pipeline.plan.make import make_plan
from pipeline.recipe import DeviceKind, Mode, Recipe
from pipeline.servers.registry import SERVERS
from pipeline.slots import SEEDED
from run import SCHEMA
from stages import all_stages
from stages.autotune import Autotune

CONF = Path(__file__).parents[1] / "conf"
FILES = sorted(CONF.rglob("*.yaml"))
OPTIONS = [(path.parent.name, path.stem) for path in FILES if path.parent != CONF]
MAX_LINES = 20


def options_of(group: str) -> list[str]:
    return [option for name, option in OPTIONS if name == group]


def compose(*overrides: str) -> Recipe:
    config.register(SCHEMA)
    return config.to_recipe(config.composed(overrides, CONF))


def default_list() -> list[Any]:
    """What conf/config.yaml starts from."""
    entries: Any = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"))
    return entries["defaults"]


def graph_of(recipe: Recipe) -> nx.DiGraph[str]:
    needs = {name: node.needs for name, node in recipe.pipeline.stages.items()}
    stages = selected_stages(recipe, needs, all_stages())
    assert option_errors(recipe, stages) == []
    return build_graph(stages, needs, seeded=SEEDED)


def test_the_default_recipe_is_deepseek_on_four_pipeline_stages():
    defaults = default_list()
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


def test_every_server_has_a_file_and_options_of_its_own():
    assert sorted(options_of("server")) == sorted(SERVERS)
    for name, server in SERVERS.items():
        assert type(compose(f"server={name}").server) is server.flags


@pytest.mark.parametrize("device", [None, *options_of("device")])
@pytest.mark.parametrize("option", options_of("pipeline"))
def test_every_pipeline_builds_its_graph_on_every_device(option: str, device: str | None):
    recipe = compose(f"pipeline={option}", *([] if device is None else [f"device={device}"]))
    # The device's own choice of a pipeline gives way to the one that was typed.
    assert recipe.pipeline.name == option
    graph = graph_of(recipe)
    assert order(graph)[0] == "plan"
    assert set(graph.nodes) == set(recipe.pipeline.stages)


def test_a_gpu_brings_the_pipeline_that_forwards_over_the_published_cache():
    recipe = compose("device=cuda")
    assert recipe.device.kind is DeviceKind.cuda
    assert recipe.pipeline.name == "on_gpu"
    assert nx.has_path(graph_of(recipe), "sweep", "forward")
    assert not nx.has_path(graph_of(compose("device=cpu")), "sweep", "forward")
    assert set(recipe.pipeline.stages) == set(compose().pipeline.stages)


def test_the_pipeline_verify_bakes_nothing_and_leaves_nothing_in_the_output():
    recipe = compose("pipeline=verify")
    stages = selected_stages(recipe, recipe.pipeline.stages, all_stages())
    assert not {"ask", "sweep", "export"} & set(stages)
    assert [name for name, stage in stages.items() if stage.leaves_output] == []
    autotune = stages["autotune"]
    assert isinstance(autotune, Autotune)
    assert autotune.frozen
    assert {"published", "verify", "prove"} <= set(stages)
    baking = selected_stages(compose(), compose().pipeline.stages, all_stages())
    assert {"ask", "sweep", "export"} <= {name for name, stage in baking.items() if stage.leaves_output}


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
    groups = {next(iter(entry)) for entry in default_list() if not isinstance(entry, str)}
    assert {str(group).removeprefix("optional ") for group in groups} == {group for group, _ in OPTIONS}
