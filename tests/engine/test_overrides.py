"""What is said about a wrong override, one line each, before anything is composed."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pipeline.engine import config
from pipeline.engine.overrides import Checker, without_sweeps
from pipeline.servers.registry import SERVERS
from run import SCHEMA
from stages import all_stages
from tests.engine import bicycle
from tests.engine.program import CONF, Done, Place, assert_refused, errors_of

BAD_OVERRIDES = (
    "bogus=1",
    "server.verson=3",
    "model=deepsek",
    "server=nothing_like_it",
    "pipeline.stages.swep.needs=[]",
    "parallel.tp=eight",
    "server.fast_warmup=maybe",
    "on_error=stopp",
    "parallel.moe_a2a_backend=deepp",
    "parallel.tp.width=8",
    "nonsense",
)


@pytest.fixture(scope="module")
def all_bad(tmp_path_factory: pytest.TempPathFactory) -> Done:
    """One run with every kind of bad override."""
    return Place(tmp_path_factory.mktemp("all_bad")).preheat("mode=plan", *BAD_OVERRIDES)


def test_every_bad_override_of_a_command_line_has_its_line_in_one_run(all_bad: Done):
    assert_refused(all_bad)
    assert all_bad.stdout == ""
    assert len(errors_of(all_bad)) == len(BAD_OVERRIDES), all_bad.stderr


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("'bogus'", ("key 'bogus' is unknown", "known: ", "parallel", "server")),
        ("'server.verson'", ("did you mean 'server.version'", "known: ", "server.fast_warmup")),
        ("'deepsek'", ("model: option", "did you mean 'deepseek'", "known: deepseek")),
        ("'nothing_like_it'", ("server: option", "known: sglang")),
        (
            "'swep'",
            ("stage 'swep' is unknown", "did you mean 'sweep'", "known: adapter, align, allocate, ask, autotune"),
        ),
        ("parallel.tp=eight", ("'eight'", "Integer")),
        ("server.fast_warmup=maybe", ("'maybe'", "bool")),
        ("on_error=stopp", ("'stopp'", "[finish, stop]")),
        ("parallel.moe_a2a_backend=deepp", ("'deepp'", "none", "deepep", "mooncake")),
        ("'width'", ("parallel.tp is a value",)),
        ("'nonsense'", ("is not KEY=VALUE",)),
    ],
)
def test_a_bad_override_is_answered_with_the_nearest_name_or_the_choices(
    all_bad: Done, key: str, parts: tuple[str, ...]
):
    (line,) = [line for line in errors_of(all_bad) if key in line]
    for part in parts:
        assert part in line


@pytest.mark.parametrize("override", ["parallel=tp8,sngle", "parallel.tp=8,eight"])
def test_each_choice_of_a_multirun_is_checked(place: Place, override: str):
    assert_refused(place.preheat("--multirun", "mode=plan", override), override.rpartition(",")[2])


def bicycle_errors(*arguments: str, config_dirs: tuple[Path, ...] = ()) -> list[str]:
    checker = Checker(schema=bicycle.SCHEMA, config_dirs=config_dirs, config_name="config", stages=["paint", "dry"])
    return checker.errors(arguments)


@pytest.mark.parametrize(
    "argument",
    [
        "colour=green",
        "wheel.spokes=12",
        "wheel.width_mm=1.5",
        "wheel.width_mm=null",
        "+facts.gears=7",
        "paint.coats=3",
        "hydra.run.dir=/tmp/x",
        "hydra/launcher=basic",
    ],
)
def test_a_right_override_has_no_error(argument: str):
    assert bicycle_errors(argument) == []


@pytest.mark.parametrize(
    ("argument", "parts"),
    [
        (
            "colur=red",
            ("key 'colur' is unknown", "did you mean 'colour'", "known: colour, facts, paint, pipeline, spare, wheel"),
        ),
        ("wheel.spoke=1", ("did you mean 'wheel.spokes'", "known: wheel.spokes, wheel.width_mm")),
        ("spare.spoke=1", ("did you mean 'spare.spokes'",)),
        ("wheel.spokes.count=1", ("wheel.spokes is a value, it has no 'count'",)),
        ("paint.coat=1", ("did you mean 'paint.coats'",)),
        ("dry.hours=1", ("key 'dry' is unknown",)),
        ("colour=blue", ("colour=blue", "'blue'", "[red, green]")),
        ("wheel.spokes=many", ("wheel.spokes=many", "'many'", "Integer")),
        ("wheel.spokes=null", ("wheel.spokes=null", "Incompatible value")),
        ("facts.gears=seven", ("facts.gears=seven", "'seven'", "Integer")),
        ("+colur=red", ("did you mean 'colour'",)),
        ("~colur", ("did you mean 'colour'",)),
        ("pipeline.stages.pant.needs=[]", ("stage 'pant' is unknown", "did you mean 'paint'", "known: dry, paint")),
    ],
)
def test_a_wrong_override_has_one_line_that_says_what_to_change(argument: str, parts: tuple[str, ...]):
    (line,) = bicycle_errors(argument)
    for part in parts:
        assert part in line
    assert "\n" not in line


def test_every_wrong_override_is_reported_in_order():
    errors = bicycle_errors("colur=red", "wheel.spokes=12", "wheel.spoke=1", "colour=blue")
    assert ["'colur'" in errors[0], "'wheel.spoke'" in errors[1], "colour=blue" in errors[2]] == [True] * 3
    assert len(errors) == 3


def test_the_options_of_a_group_come_from_every_folder(tmp_path: Path):
    for folder, name in (("a", "steel"), ("b", "alloy")):
        (tmp_path / folder / "wheel").mkdir(parents=True)
        (tmp_path / folder / "wheel" / f"{name}.yaml").write_text("spokes: 1\n")
    folders = (tmp_path / "a", tmp_path / "b")
    assert bicycle_errors("wheel=alloy", config_dirs=folders) == []
    (line,) = bicycle_errors("wheel=aloy", config_dirs=folders)
    assert line == "wheel: option 'aloy' is unknown; did you mean 'alloy'? known: alloy, steel"


def server_errors(*arguments: str, folder: Path | None = None, config_name: str = "config") -> list[str]:
    """What the program says; `folder` holds more configs."""
    config.register(SCHEMA)
    folders = [CONF] if folder is None else [CONF, folder]
    checker = Checker(schema=SCHEMA, config_dirs=folders, config_name=config_name, stages=sorted(all_stages()))
    return checker.errors(arguments)


SGLANG_ONLY = "server.fp8_gemm_backend is an option of server=sglang, not of the server that this recipe has"
VLLM_ONLY = "server.use_deep_gemm is an option of server=vllm, not of the server that this recipe has"


@pytest.mark.parametrize(
    ("arguments", "errors"),
    [
        (("server=vllm", "server.fp8_gemm_backend=triton"), [SGLANG_ONLY]),
        (("server.fp8_gemm_backend=triton", "server=vllm"), [SGLANG_ONLY]),
        (("server.use_deep_gemm=true",), [VLLM_ONLY]),
        (("server=sglang", "+server.use_deep_gemm=true"), [VLLM_ONLY]),
        (("server=sglang,vllm", "server.fp8_gemm_backend=triton"), [SGLANG_ONLY]),
        (("server=sglang,vllm", "server.use_deep_gemm=true"), [VLLM_ONLY]),
        (("server=sglang,vllm", "server.use_deep_gemm=true,false"), [VLLM_ONLY]),
        (("model=deepseek,glm5", "server.use_deep_gemm=true"), [VLLM_ONLY]),
    ],
    ids=" ".join,
)
def test_an_option_of_another_server_names_that_server(arguments: tuple[str, ...], errors: list[str]):
    assert server_errors(*arguments) == errors


@pytest.mark.parametrize(
    "arguments",
    [
        ("server.fp8_gemm_backend=triton",),
        ("server=vllm", "server.use_deep_gemm=true"),
        ("server=sglang", "server.moe_runner_backend=flashinfer_mxfp4"),
        ("server=sglang,vllm", "server.moe_runner_backend=deep_gemm", "server.cuda_graph_max_bs=8,16"),
    ],
    ids=" ".join,
)
def test_what_every_chosen_server_takes_is_no_error(arguments: tuple[str, ...]):
    assert server_errors(*arguments) == []


def vllm_by_default(folder: Path) -> Path:
    """A folder with a saved recipe for vLLM, and with an experiment that chooses vLLM."""
    config.register(SCHEMA)
    (folder / "experiment").mkdir()
    (folder / "recipe.yaml").write_text(config.to_yaml(config.composed(["server=vllm"], CONF), SCHEMA))
    experiment = "# @package _global_\ndefaults: [override /server: vllm, _self_]\n"
    (folder / "experiment" / "on_vllm.yaml").write_text(experiment)
    return folder


def test_the_server_of_a_saved_recipe_decides_where_the_command_line_names_none(tmp_path: Path):
    folder = vllm_by_default(tmp_path)
    assert server_errors("server.fp8_gemm_backend=triton", folder=folder, config_name="recipe") == [SGLANG_ONLY]
    assert server_errors("server.use_deep_gemm=true", folder=folder, config_name="recipe") == []


def test_the_server_of_a_chosen_experiment_decides_where_the_command_line_names_none(tmp_path: Path):
    folder = vllm_by_default(tmp_path)
    assert server_errors("experiment=on_vllm", "server.fp8_gemm_backend=triton", folder=folder) == [SGLANG_ONLY]
    assert server_errors("experiment=on_vllm", "server.use_deep_gemm=true", folder=folder) == []


def test_an_option_of_one_server_is_no_error_of_its_own_where_the_server_cannot_be_told():
    (line,) = server_errors("server=sglnag", "server.fp8_gemm_backend=triton")
    assert line.startswith("server: option 'sglnag' is unknown")
    (line,) = server_errors("model=deepsek", "server.fp8_gemm_backend=triton")
    assert line.startswith("model: option 'deepsek' is unknown")
    (*_, line) = server_errors("server=sglnag", "server.bogus=1")
    assert line.startswith("key 'server.bogus' is unknown")


@pytest.mark.parametrize("server", SERVERS)
def test_an_option_that_no_server_has_lists_those_of_the_chosen_server(server: str):
    (line,) = server_errors(f"server={server}", "server.bogus=1")
    assert line.startswith("key 'server.bogus' is unknown; did you mean ")
    names = sorted(f"server.{option.name}" for option in fields(SERVERS[server].flags))
    assert line.partition("known: ")[2].split(", ") == names


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("server=vllm", "server.moe_runner_backend=flashinfer_mxfp4"), ("_mxfp4: ", "auto, deep_gemm, triton")),
        (("server=sglang,vllm", "server.moe_runner_backend=flashinfer_mxfp4"), ("'flashinfer_mxfp4'",)),
        (("server=vllm", "server.warmup=all"), ("server.warmup=all", "[relax, full, skip]")),
        (("server.disaggregation_mode=both",), ("server.disaggregation_mode=both", "prefill", "decode")),
    ],
    ids=str,
)
def test_a_value_is_checked_against_the_chosen_server(arguments: tuple[str, ...], parts: tuple[str, ...]):
    (line,) = server_errors(*arguments)
    for part in parts:
        assert part in line


def test_the_program_refuses_an_option_of_another_server(place: Place):
    assert_refused(place.preheat("mode=plan", "server=vllm", "server.fp8_gemm_backend=triton"), SGLANG_ONLY)
    assert place.left_behind() == []


def test_the_recipes_of_a_multirun_share_what_is_no_sweep():
    assert without_sweeps(["server=sglang,vllm", "mode=plan", "parallel.tp=1,2"]) == ["mode=plan"]
