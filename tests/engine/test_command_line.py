"""How a command line is taken apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pipeline.engine.command_line import parse
from pipeline.engine.errors import ConfigError
from tests.engine.program import CONF, Place, assert_refused

TEXT = ("server.args", "plan.explain")


@pytest.mark.parametrize(
    "value",
    [
        "512,7168,257",
        "--tp 8 --cuda-graph-bs 1,2,4",
        '--json-model-override-args {"a": [1, 2]}',
        "--served-model-name it's=mine",
    ],
)
def test_free_text_reaches_hydra_to_the_letter(value: str):
    (override,) = parse([f"server.args={value}"], TEXT).overrides
    assert OverridesParser.create().parse_override(override).value() == value


@pytest.mark.parametrize("value", ["null", "'--tp 8'", '"--tp 8"', ""])
def test_what_is_quoted_or_nothing_stays(value: str):
    assert parse([f"server.args={value}"], TEXT).overrides == [f"server.args={value}"]


def test_other_overrides_stay_sweeps_and_lists():
    given = ["parallel=tp8,pp4", "autotune.ops=[fp8_gemm,bf16_gemm]"]
    assert parse(given, TEXT).overrides == given


def test_flags_may_stand_anywhere():
    line = parse(["model=deepseek", "--cfg", "job", "-m", "parallel=tp8,pp4"])
    assert line.arguments() == ["-m", "--cfg", "job", "model=deepseek", "parallel=tp8,pp4"]
    assert line.is_multirun


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"recipe: no such file: .*lost.yaml"):
        parse([f"recipe={tmp_path / 'lost.yaml'}"])


def test_cfg_job_prints_the_composed_recipe(place: Place):
    done = place.preheat("--cfg", "job", "parallel=tp8")
    assert done.returncode == 0, done.stderr
    assert "\nparallel:\n  name: tp8\n  tp: 8\n" in done.stdout
    assert place.left_behind() == []


def test_help_lists_the_groups_and_their_options(place: Place):
    done = place.preheat("--help")
    assert done.returncode == 0, done.stderr
    listed = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    for group in ("model", "parallel", "server", "target"):
        options = [path.stem for path in (CONF / group).glob("*.yaml")]
        assert listed[group].split(", ") == sorted(options)


@pytest.mark.parametrize(
    "arguments", [("mode=plan", "--cfg", "job"), ("mode=plan", "--config-dir", str(CONF), "plan.format=json")], ids=str
)
def test_flags_may_stand_after_overrides(place: Place, arguments: tuple[str, ...]):
    done = place.preheat(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_several_recipes_are_planned_in_one_command_and_the_worst_code_comes_back(place: Place):
    good = place.preheat("--multirun", "mode=plan", "parallel=tp8,single")
    assert good.returncode == 0, good.stderr
    assert good.stdout.count("Problems for DeepGEMM") == 2
    mixed = place.preheat("--multirun", "mode=plan", "parallel.tp=8,3")
    assert_refused(mixed, "must be divisible by the attention tp 3")
    assert place.left_behind() == []


@pytest.mark.parametrize("path", ["nowhere/recipe.yaml", "nowhere", "../here"])
def test_a_recipe_that_is_not_there_is_a_config_error_that_names_the_path(place: Place, path: str):
    done = place.preheat(f"recipe={path}", "mode=plan")
    assert_refused(done, Path(path).name)
