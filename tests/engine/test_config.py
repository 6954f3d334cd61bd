"""From YAML and overrides to a typed recipe, and back to YAML that composes to the same recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from pipeline.engine import config
from pipeline.engine.errors import ConfigError
from pipeline.recipe import Recipe
from pipeline.servers.registry import SERVERS
from run import SCHEMA
from stages import all_stages
from stages.autotune import Autotune
from stages.sweep import Sweep
from tests.engine import bicycle
from tests.engine.program import CONF, Place, assert_refused

VERIFY = CONF / "pipeline" / "verify.yaml"
OLDER = "defaults: [recipe_schema, hydra_settings, _self_]\nmode: run\nserver: {name: sglang, version: 0.5.2}\n"


@pytest.fixture(autouse=True)
def registered() -> None:
    config.register(SCHEMA)


def composed(*overrides: str) -> DictConfig:
    return config.composed(overrides, CONF)


def stage_of(recipe: Any, name: str) -> Any:
    """The options of a stage: a field that make_schema added."""
    return getattr(recipe, name)


def test_the_schema_has_a_field_for_each_stage_that_has_options():
    made = bicycle.SCHEMA.recipe()
    assert made.paint == bicycle.Paint(coats=2)
    assert not hasattr(made, "dry")
    assert made.paint is not bicycle.SCHEMA.recipe().paint


def test_the_schema_keeps_the_variants_of_a_field():
    made = config.make_schema(bicycle.Bicycle, {}, {"wheel": {"wide": bicycle.Wheel}})
    assert made.variants == {"wheel": {"wide": bicycle.Wheel}}
    assert config.variant_name("wheel", "wide") == "wheel_wide"


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_has_the_class_of_its_own_options(server: str):
    assert type(config.to_recipe(composed(f"server={server}")).server) is SERVERS[server].flags


def test_what_hydra_refuses_is_a_config_error_on_one_line():
    with pytest.raises(ConfigError, match="ambiguous|Ambiguous") as refused:
        composed("parallel=tp8,pp4")
    assert len(refused.value.lines) == 1
    assert "\n" not in str(refused.value)


def test_an_option_of_another_server_does_not_compose():
    with pytest.raises(ConfigError, match="use_deep_gemm"):
        composed("server=sglang", "server.use_deep_gemm=true")


def test_a_config_file_that_is_no_yaml_is_a_config_error(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("defaults: [config\n")
    with pytest.raises(ConfigError, match="expected ',' or ']'"):
        config.composed([], CONF, config_name="mine", more_dirs=[tmp_path])


def test_an_interpolation_that_does_not_resolve_is_a_config_error_that_names_the_key():
    with pytest.raises(ConfigError, match=r"'nothing' not found full_key: model\.name"):
        config.to_recipe(composed("model.name=${nothing}"))


def test_a_composed_recipe_holds_the_stages_as_objects_of_their_classes():
    recipe = config.to_recipe(composed("sweep.jobs=3"))
    assert isinstance(recipe, Recipe)
    sweep = stage_of(recipe, "sweep")
    assert isinstance(sweep, all_stages()["sweep"])
    assert isinstance(sweep, Sweep)
    assert sweep.jobs == 3


@pytest.mark.parametrize(
    "overrides",
    [
        ("server=sglang", "server.fp8_gemm_backend=triton", "server.args='--tp 8, --x=1'"),
        ("server=vllm", "server.use_deep_gemm=true", "server.moe_runner_backend=deep_gemm"),
        ("server=vllm", "device=cuda", "parallel=tp8", "sweep.jobs=3", "~pipeline.stages.export"),
    ],
    ids=" ".join,
)
def test_a_recipe_written_as_yaml_composes_to_the_same_recipe(overrides: tuple[str, ...], tmp_path: Path):
    raw = composed(*overrides)
    path = tmp_path / "recipe.yaml"
    path.write_text(config.to_yaml(raw, SCHEMA))
    config.require_replayable(path, SCHEMA)
    again = config.composed([], CONF, config_name="recipe", more_dirs=[tmp_path])
    assert config.to_recipe(again) == config.to_recipe(raw)
    assert config.to_yaml(again, SCHEMA) == path.read_text()


def test_a_written_recipe_depends_on_no_variable_and_no_other_value(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREHEAT_STORE", "/somewhere")
    text = config.to_yaml(composed("model.name=mine"), SCHEMA)
    assert "${" not in text
    assert OmegaConf.create(text).store.dir == "/somewhere"
    assert OmegaConf.create(text).output.dir == "warm/mine-pp4-sglang-h200"


@pytest.mark.parametrize("defaults", ["[recipe_schema, hydra_settings, _self_]", "[]", "recipe_schema", "7"])
def test_a_recipe_of_an_older_release_is_refused_with_what_to_do(defaults: str, tmp_path: Path):
    path = tmp_path / "recipe.yaml"
    path.write_text(f"defaults: {defaults}\nserver: {{name: sglang}}\n")
    with pytest.raises(ConfigError) as refused:
        config.require_replayable(path, SCHEMA)
    assert refused.value.lines == [
        f"recipe: {path} was not written by this release of Preheat (its defaults name none of server_sglang, "
        "server_vllm); bake once more with the options that it holds"
    ]


@pytest.mark.parametrize("text", ["", "- a\n- list\n", "mode: run\n", "just text"])
def test_a_file_without_defaults_is_no_recipe(text: str, tmp_path: Path):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="was not written by this release of Preheat"):
        config.require_replayable(path, SCHEMA)


@pytest.mark.parametrize("content", [b"defaults: [server_sglang\n", b"\xff\xfe\x00", b"a: 1\n b: : 2\n"])
def test_a_file_that_cannot_be_read_is_a_config_error_that_names_it(content: bytes, tmp_path: Path):
    path = tmp_path / "recipe.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"recipe: cannot read {path}: ") as refused:
        config.require_replayable(path, SCHEMA)
    assert len(refused.value.lines) == 1
    assert "\n" not in str(refused.value)


def test_another_pipeline_replaces_every_stage_and_brings_its_options():
    raw = composed("device=cuda")
    changed = config.with_pipeline(raw, VERIFY)
    recipe = config.to_recipe(changed)
    assert recipe.pipeline.name == "verify"
    assert list(recipe.pipeline.stages) == list(OmegaConf.load(VERIFY).pipeline.stages)
    assert not {"ask", "sweep", "export"} & set(recipe.pipeline.stages)
    autotune = stage_of(recipe, "autotune")
    assert isinstance(autotune, Autotune)
    assert autotune.frozen


def test_another_pipeline_leaves_the_rest_and_the_original_as_they_were():
    raw = composed("device=cuda", "autotune.ops=[fp8_gemm]")
    before = OmegaConf.to_yaml(raw)
    changed = config.to_recipe(config.with_pipeline(raw, VERIFY))
    assert OmegaConf.to_yaml(raw) == before
    recipe = config.to_recipe(raw)
    for part in ("model", "parallel", "server", "target", "device", "output", "store", "mode"):
        assert getattr(changed, part) == getattr(recipe, part)
    assert stage_of(changed, "autotune").ops == stage_of(recipe, "autotune").ops


def test_a_recipe_with_another_pipeline_can_be_written_and_composed_again(tmp_path: Path):
    changed = config.with_pipeline(composed("server=vllm"), VERIFY)
    (tmp_path / "recipe.yaml").write_text(config.to_yaml(changed, SCHEMA))
    again = config.composed([], CONF, config_name="recipe", more_dirs=[tmp_path])
    assert config.to_recipe(again) == config.to_recipe(changed)


@pytest.fixture
def saved(place: Place) -> Path:
    """A recipe.yaml as export leaves it, in a folder of its own."""
    raw = composed("parallel=tp8", "sweep.jobs=3", "model.name=kept")
    path = place.root / "saved" / "recipe.yaml"
    path.parent.mkdir()
    path.write_text(config.to_yaml(raw, SCHEMA))
    return path


def test_a_saved_recipe_composes_to_itself(place: Place, saved: Path):
    again = place.preheat(f"recipe={saved}", "--cfg", "job", "--resolve")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == saved.read_text().partition("\n")[2].strip()


@pytest.mark.parametrize("where", ["file", "folder"])
def test_a_saved_recipe_is_planned_again_with_an_override(place: Place, saved: Path, where: str):
    path = saved if where == "file" else saved.parent
    before = set(place.left_behind())
    done = place.preheat(f"recipe={path}", "mode=plan", "plan.format=json", "server.fast_warmup=true")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert len(plan["problems"][0]["ranks"]) == 8
    assert plan["problems"][0]["m_count"] < 16384
    assert set(place.left_behind()) == before


def test_a_saved_recipe_may_be_named_after_an_override(place: Place, saved: Path):
    done = place.preheat("mode=plan", "plan.format=json", f"recipe={saved}")
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["problems"][0]["ranks"]) == 8


def test_a_bad_override_of_a_saved_recipe_is_refused(place: Place, saved: Path):
    done = place.preheat(f"recipe={saved}", "mode=plan", "server.verson=1", "parallel.tp=eight")
    assert_refused(done, "did you mean 'server.version'", "'eight'")


def test_what_hydra_refuses_for_a_saved_recipe_is_a_config_error_too(place: Place, saved: Path):
    """A saved recipe holds values and no groups, so there is no group to choose another option of."""
    done = place.preheat(f"recipe={saved}", "mode=plan", "parallel=single")
    assert_refused(done, "parallel")
    assert "HYDRA_FULL_ERROR" not in done.stderr


@pytest.mark.parametrize(("text", "part"), [(OLDER, "bake once more"), ("defaults: [server_sglang\n", "cannot read")])
def test_the_program_refuses_a_recipe_that_it_cannot_replay(place: Place, saved: Path, text: str, part: str):
    saved.write_text(text)
    assert_refused(place.preheat(f"recipe={saved}", "mode=plan"), str(saved), part)
