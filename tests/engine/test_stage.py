"""What a stage gives to the program by its contract: its options, its lines about them, its part of mode=plan."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.program import PROJECT, Done, Place, assert_refused

EXTRA = """
from dataclasses import dataclass
from pipeline.engine.stage import Result, Stage
@dataclass(kw_only=True)
class Extra(Stage):
    depth: int = 1
    def run(self, ctx):
        return Result('')
    def config_errors(self, recipe):
        return [] if self.depth == 7 else [f'extra.depth is {self.depth} for {recipe.model.name}']
"""


@pytest.fixture(scope="module")
def json_plan(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Done]:
    """One run of mode=plan that also lists every module it imports."""
    place = Place(tmp_path_factory.mktemp("json_plan"))
    return place, place.preheat("mode=plan", "plan.format=json", python=("-X", "importtime"))


def test_a_json_plan_is_exactly_one_object(json_plan: tuple[Place, Done]):
    _, done = json_plan
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
    assert len(done.stdout.splitlines()) == 1


def test_a_json_plan_has_the_keys_that_the_design_names(json_plan: tuple[Place, Done]):
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


def test_a_plan_imports_no_torch(json_plan: tuple[Place, Done]):
    imported = {line.rpartition("|")[2].strip().split(".")[0] for line in json_plan[1].stderr.splitlines()}
    assert {"hydra", "pipeline", "stages"} <= imported, "-X importtime lists no module"
    assert not imported & {"torch", "flashinfer", "deep_gemm"}


def test_a_plan_touches_nothing(json_plan: tuple[Place, Done]):
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
def package(tmp_path: Path) -> Path:
    """An installed package with the stage `extra`."""
    package = tmp_path / "site"
    (package / "extra-1.dist-info").mkdir(parents=True)
    (package / "extra-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: extra\nVersion: 1\n")
    (package / "extra-1.dist-info" / "entry_points.txt").write_text("[preheat.stages]\nextra = extra:Extra\n")
    (package / "extra.py").write_text(EXTRA)
    return package


def test_a_stage_of_an_installed_package_can_be_selected_and_given_options(package: Path, tmp_path: Path):
    conf = tmp_path / "conf" / "pipeline"
    conf.mkdir(parents=True)
    (conf / "more.yaml").write_text("name: more\nstages:\n  plan: {needs: []}\n  extra: {needs: [plan]}\n")
    command = f"import sys; sys.path.insert(0, {str(PROJECT)!r}); sys.path.insert(0, {str(package)!r}); import run; "
    where = ("--config-dir", str(conf.parent), "pipeline=more", "mode=plan", "plan.format=json")

    def plan(option: str) -> Done:
        script = command + "sys.exit(run.main(sys.argv[1:]))"
        return subprocess.run(
            [sys.executable, "-c", script, *where, option], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )

    done = plan("extra.depth=7")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["stages"][-1] == {"name": "extra", "needs": ["plan"]}
    assert_refused(plan("extra.depth=8"), "extra.depth is 8 for deepseek")
