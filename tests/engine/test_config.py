from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest

from pipeline.engine import config
from pipeline.engine.context import View
from pipeline.engine.errors import ConfigError
from pipeline.engine.stage import Result, Stage
from pipeline.recipe import Recipe
from stages import all_stages

PROJECT = Path(__file__).parents[2]
CONF = PROJECT / "conf"
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


@dataclass(frozen=True)
class Place:
    """An empty folder to run in and an empty home; what a run leaves anywhere else is not looked at."""

    root: Path

    @property
    def here(self) -> Path:
        return self.root / "here"

    def preheat(self, *arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        home = self.root / "home"
        for folder in (self.here, home):
            folder.mkdir(exist_ok=True)
        env = {name: value for name, value in os.environ.items() if name not in ("PREHEAT_STORE", "HYDRA_FULL_ERROR")}
        return subprocess.run(
            [sys.executable, *python, str(PROJECT / "run.py"), *arguments],
            cwd=self.here,
            env=env | {"HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def left_behind(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.glob("*/*"))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def json_plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, subprocess.CompletedProcess[str]]:
    """One run of mode=plan that also lists every module it imports."""
    place = Place(tmp_path_factory.mktemp("json_plan"))
    return place, place.preheat("mode=plan", "plan.format=json", python=("-X", "importtime"))


@pytest.fixture(scope="module")
def all_bad(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """One run with every kind of bad override."""
    return Place(tmp_path_factory.mktemp("all_bad")).preheat("mode=plan", *BAD_OVERRIDES)


def errors_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.removeprefix("error: ") for line in done.stderr.splitlines() if line.startswith("error: ")]


def assert_refused(done: subprocess.CompletedProcess[str], *parts: str) -> None:
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in "\n".join(errors_of(done)), done.stderr


def test_every_bad_override_of_a_command_line_has_its_line_in_one_run(all_bad: subprocess.CompletedProcess[str]):
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
    all_bad: subprocess.CompletedProcess[str], key: str, parts: tuple[str, ...]
):
    (line,) = [line for line in errors_of(all_bad) if key in line]
    for part in parts:
        assert part in line


def test_options_stages_graph_and_layout_are_checked_together(place: Place):
    done = place.preheat("mode=plan", "align.batch=0", "parallel.tp=3", "sweep.jobs=0", "~pipeline.stages.sweep")
    assert_refused(
        done,
        "align.batch must be at least 1, got 0",
        "num_attention_heads 128 must be divisible by the attention tp 3",
        "pipeline.stages.verify.needs: stage 'sweep' is unknown",
        "reads 'baked', which none of its ancestors writes",
        "sweep has options, but the pipeline selects no stage of that name",
    )


def test_the_needs_of_a_stage_can_be_changed(place: Place):
    done = place.preheat("mode=plan", "plan.format=json", "pipeline.stages.align.needs=[allocate,adapter]")
    assert done.returncode == 0, done.stderr
    needs = {stage["name"]: stage["needs"] for stage in json.loads(done.stdout)["stages"]}
    assert needs["align"] == ["allocate", "adapter"]


def test_a_cycle_made_by_an_override_is_printed_as_a_path(place: Place):
    done = place.preheat("mode=plan", "pipeline.stages.plan.needs=[export]")
    assert_refused(done, "needs form a cycle: ")
    path = re.search(r"cycle: ([^;]*);", done.stderr)
    assert path is not None
    names = path[1].split(" -> ")
    assert names[0] == names[-1]
    assert ("export", "plan") in set(zip(names, names[1:], strict=False))


def test_an_unknown_need_made_by_an_override_is_answered_with_the_nearest_name(place: Place):
    done = place.preheat("mode=plan", "pipeline.stages.verify.needs=[autotune,swep]")
    assert_refused(done, "pipeline.stages.verify.needs: stage 'swep' is unknown; did you mean 'sweep'?")


def test_an_unknown_stage_in_a_file_is_answered_with_the_nearest_name(place: Place):
    folder = place.root / "conf" / "pipeline"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text("name: mine\nstages:\n  plan: {needs: []}\n  swep: {needs: [plan]}\n")
    done = place.preheat("--config-dir", str(folder.parent), "pipeline=mine", "mode=plan")
    assert_refused(done, "'swep'", "did you mean 'sweep'?")


def test_a_pipeline_may_leave_its_last_stage_out(place: Place):
    done = place.preheat("mode=plan", "plan.format=json", "~pipeline.stages.export")
    assert done.returncode == 0, done.stderr
    assert "export" not in [stage["name"] for stage in json.loads(done.stdout)["stages"]]


def test_options_of_a_stage_that_is_not_selected_are_an_error(place: Place):
    done = place.preheat("mode=plan", "~pipeline.stages.sweep", "sweep.jobs=3")
    assert_refused(done, "sweep has options, but the pipeline selects no stage of that name; selected: plan, ")


def test_a_stage_of_an_installed_package_can_be_selected_and_given_options(place: Place):
    package = place.root / "site"
    (package / "extra-1.dist-info").mkdir(parents=True)
    (package / "extra-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
    (package / "extra-1.dist-info" / "entry_points.txt").write_text("[preheat.stages]\nextra = extra:Extra\n")
    (package / "extra.py").write_text(
        "from dataclasses import dataclass\n"
        "from pipeline.engine.stage import Result, Stage\n"
        "@dataclass(kw_only=True)\n"
        "class Extra(Stage):\n"
        "    depth: int = 1\n"
        "    def run(self, ctx):\n"
        "        return Result('')\n"
        "    def problems(self):\n"
        "        return [] if self.depth == 7 else [f'extra.depth is {self.depth}']\n"
    )
    conf = place.root / "conf" / "pipeline"
    conf.mkdir(parents=True)
    (conf / "more.yaml").write_text("name: more\nstages:\n  plan: {needs: []}\n  extra: {needs: [plan]}\n")
    command = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); sys.path.insert(0, {str(package)!r}); import run; "
    where = ("--config-dir", str(conf.parent), "pipeline=more", "mode=plan", "plan.format=json")

    def plan(option: str) -> subprocess.CompletedProcess[str]:
        script = command + "sys.exit(run.main(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", script, *where, option], cwd=place.root, capture_output=True, text=True, timeout=60
        )

    done = plan("extra.depth=7")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"][-1] == {"name": "extra", "needs": ["plan"]}
    assert_refused(plan("extra.depth=8"), "extra.depth is 8")


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


@pytest.mark.parametrize("override", ["parallel=tp8,sngle", "parallel.tp=8,eight"])
def test_each_choice_of_a_multirun_is_checked(place: Place, override: str):
    assert_refused(place.preheat("--multirun", "mode=plan", override), override.rpartition(",")[2])


def test_a_json_plan_is_exactly_one_object(json_plan: tuple[Place, subprocess.CompletedProcess[str]]):
    _, done = json_plan
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    assert len(done.stdout.splitlines()) == 1


def test_a_json_plan_has_the_keys_that_the_design_names(json_plan: tuple[Place, subprocess.CompletedProcess[str]]):
    plan = json.loads(json_plan[1].stdout)
    assert set(plan) == {"problems", "rules", "not_deepgemm", "buffers", "stages"}
    wanted = {"kernel", "n", "k", "groups", "m_count", "m_min", "m_max", "layers", "ranks", "rule"}
    assert plan["problems"]
    for problem in plan["problems"]:
        assert wanted <= set(problem)
        assert problem["m_min"] <= problem["m_max"]
        assert problem["m_count"] >= 1
        assert problem["rule"]
    assert plan["not_deepgemm"]
    assert all(entry["layer"] and entry["reason"] for entry in plan["not_deepgemm"])
    assert plan["buffers"]["arena_bytes"] > 0
    assert {"name", "dtype", "shape", "bytes"} <= set(plan["buffers"]["slots"][0])
    assert {"name": "verify", "needs": ["autotune", "sweep"]} in plan["stages"]


def test_a_plan_imports_no_torch(json_plan: tuple[Place, subprocess.CompletedProcess[str]]):
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in json_plan[1].stderr.splitlines()}
    assert {"hydra", "pipeline", "stages"} <= imported, "-X importtime lists no module"
    assert not imported & {"torch", "flashinfer", "deep_gemm"}


def test_a_plan_touches_nothing(json_plan: tuple[Place, subprocess.CompletedProcess[str]]):
    place, _ = json_plan
    assert place.left_behind() == []


@pytest.mark.parametrize("override", ["++mode=plan", "mode='plan'"])
def test_a_plan_touches_nothing_however_the_mode_is_written(place: Place, override: str):
    done = place.preheat(override)
    assert done.returncode == 0, done.stderr
    assert place.left_behind() == []


def test_a_plan_for_people_shows_problems_reasons_buffers_and_stages(place: Place):
    done = place.preheat("mode=plan")
    assert done.returncode == 0, done.stderr
    for part in ("Problems for DeepGEMM", "Not for DeepGEMM", "Buffers: one arena of", "Stages", "autotune, sweep"):
        assert part in done.stdout
    assert done.stderr == ""


@pytest.fixture
def saved(place: Place) -> Path:
    """A recipe.yaml as export leaves it, in a folder of its own."""
    config.register(config.make_schema(Recipe, all_stages()))
    raw = config.composed(["parallel=tp8", "sweep.jobs=3", "model.name=kept"], CONF)
    path = place.root / "saved" / "recipe.yaml"
    path.parent.mkdir()
    path.write_text(config.to_yaml(raw))
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


@pytest.mark.parametrize("path", ["nowhere/recipe.yaml", "nowhere", "../here"])
def test_a_recipe_that_is_not_there_is_a_config_error_that_names_the_path(place: Place, path: str):
    done = place.preheat(f"recipe={path}", "mode=plan")
    assert_refused(done, Path(path).name)


def test_what_hydra_refuses_for_a_saved_recipe_is_a_config_error_too(place: Place, saved: Path):
    """A saved recipe holds values and no groups, so there is no group to choose another option of."""
    done = place.preheat(f"recipe={saved}", "mode=plan", "parallel=single")
    assert_refused(done, "parallel")
    assert "HYDRA_FULL_ERROR" not in done.stderr


class Colour(Enum):
    """A field with few choices."""

    red = "red"
    green = "green"


@dataclass(kw_only=True)
class Wheel:
    """A nested part of a schema."""

    spokes: int = 8
    width_mm: float | None = None


@dataclass(kw_only=True)
class Work:
    """A stage's place in the schema's graph."""

    needs: list[str] = field(default_factory=list[str])


@dataclass(kw_only=True)
class Works:
    """The schema's graph."""

    stages: dict[str, Work] = field(default_factory=dict[str, Work])


@dataclass(kw_only=True)
class Bicycle:
    """A schema."""

    colour: Colour = Colour.red
    wheel: Wheel = field(default_factory=Wheel)
    spare: Wheel | None = None
    facts: dict[str, int] = field(default_factory=dict[str, int])
    pipeline: Works = field(default_factory=Works)


@dataclass(kw_only=True)
class Paint(Stage):
    """A stage with an option."""

    coats: int = 2

    def run(self, ctx: View) -> Result:
        return Result("")


@dataclass(kw_only=True)
class Dry(Stage):
    """A stage without options."""

    def run(self, ctx: View) -> Result:
        return Result("")


SCHEMA = config.make_schema(Bicycle, {"paint": Paint, "dry": Dry})


def problems(*arguments: str) -> list[str]:
    return config.override_problems(arguments, SCHEMA, [], ["paint", "dry"])


def test_the_schema_has_a_field_for_each_stage_that_has_options():
    made = SCHEMA()
    assert made.paint == Paint(coats=2)
    assert not hasattr(made, "dry")
    assert made.paint is not SCHEMA().paint


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
def test_a_right_override_has_no_problem(argument: str):
    assert problems(argument) == []


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
    (line,) = problems(argument)
    for part in parts:
        assert part in line
    assert "\n" not in line


def test_every_wrong_override_is_reported_in_order():
    found = problems("colur=red", "wheel.spokes=12", "wheel.spoke=1", "colour=blue")
    assert ["'colur'" in found[0], "'wheel.spoke'" in found[1], "colour=blue" in found[2]] == [True] * 3
    assert len(found) == 3


def test_the_options_of_a_group_come_from_every_folder(tmp_path: Path):
    for folder, name in (("a", "steel"), ("b", "alloy")):
        (tmp_path / folder / "wheel").mkdir(parents=True)
        (tmp_path / folder / "wheel" / f"{name}.yaml").write_text("spokes: 1\n")
    folders = [tmp_path / "a", tmp_path / "b"]
    assert config.override_problems(["wheel=alloy"], SCHEMA, folders, []) == []
    (line,) = config.override_problems(["wheel=aloy"], SCHEMA, folders, [])
    assert line == "wheel: option 'aloy' is unknown; did you mean 'alloy'? known: alloy, steel"


def test_what_hydra_refuses_is_a_config_error_on_one_line():
    config.register(config.make_schema(Recipe, all_stages()))
    with pytest.raises(ConfigError, match="ambiguous|Ambiguous") as refused:
        config.composed(["parallel=tp8,pp4"], CONF)
    assert len(refused.value.problems) == 1
    assert "\n" not in str(refused.value)


def test_an_interpolation_that_does_not_resolve_is_a_config_error_that_names_the_key():
    config.register(config.make_schema(Recipe, all_stages()))
    raw = config.composed(["model.name=${nothing}"], CONF)
    with pytest.raises(ConfigError, match=r"'nothing' not found full_key: model\.name"):
        config.to_recipe(raw)


def test_a_composed_recipe_holds_the_stages_as_objects_of_their_classes():
    config.register(config.make_schema(Recipe, all_stages()))
    recipe = config.to_recipe(config.composed(["sweep.jobs=3"], CONF))
    assert isinstance(recipe, Recipe)
    sweep = recipe.sweep  # pyright: ignore[reportAttributeAccessIssue]  added by make_schema
    assert isinstance(sweep, all_stages()["sweep"])
    assert sweep.jobs == 3
