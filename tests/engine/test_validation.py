"""What is wrong with a recipe's graph and with its stages' options, all of it before any work."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

import networkx as nx
import pytest

from pipeline.engine.context import Slot, View
from pipeline.engine.errors import ConfigError
from pipeline.engine.graph import build_graph, order
from pipeline.engine.stage import Result, Stage
from pipeline.engine.validation import option_errors, selected_stages, unselected_options, validated_graph
from stages import STAGES
from tests.engine.bicycle import Bicycle, Dry, Paint
from tests.engine.program import Place, assert_refused

WORK: Slot[int] = Slot("work")


@dataclass(kw_only=True)
class Painted(Bicycle):
    """A recipe with the options of one stage."""

    paint: Paint


@dataclass(kw_only=True)
class Picky(Stage):
    """A stage that wants more spokes than the recipe has."""

    reads = (WORK,)
    spokes: int = 9

    def run(self, ctx: View) -> Result:
        return Result("")

    def config_errors(self, recipe: Bicycle) -> list[str]:
        return [f"picky.spokes must be {recipe.wheel.spokes}, got {self.spokes}", "picky.spokes must be even"]


def graph_of(stages: dict[str, Stage], needs: dict[str, list[str]], *errors: str) -> nx.DiGraph[str]:
    return validated_graph(errors, lambda: build_graph(stages, needs, seeded=(), known=["dry", "paint", "picky"]))


def test_selected_stages_come_from_the_recipe_or_are_made_where_they_have_no_options():
    paint = Paint(coats=5)
    stages = selected_stages(Painted(paint=paint), ["paint", "dry", "unheard_of"], {"paint": Paint, "dry": Dry})
    assert list(stages) == ["paint", "dry"]
    assert stages["paint"] is paint
    assert isinstance(stages["dry"], Dry)


def test_every_stage_says_what_is_wrong_with_its_options():
    lines = ["picky.spokes must be 8, got 9", "picky.spokes must be even"]
    assert option_errors(Bicycle(), {"paint": Paint(), "picky": Picky()}) == lines
    assert option_errors(Bicycle(), {"paint": Paint()}) == []


@pytest.mark.parametrize("override", ["paint.coats=3", "+paint.coats=3", "++paint.coats=3", "~paint.coats", "paint={}"])
def test_an_option_of_a_stage_that_is_not_selected_is_an_error_however_it_is_written(override: str):
    assert unselected_options([override, "wheel.spokes=3"], ["dry"], ["paint", "dry"]) == [
        "paint has options, but the pipeline selects no stage of that name; selected: dry"
    ]
    assert unselected_options([override], ["dry", "paint"], ["paint", "dry"]) == []


def test_a_right_recipe_gives_its_graph():
    assert order(graph_of({"paint": Paint(), "dry": Dry()}, {"paint": [], "dry": ["paint"]})) == ["paint", "dry"]


def test_errors_of_options_and_of_the_graph_come_together():
    with pytest.raises(ConfigError) as refused:
        graph_of({"picky": Picky()}, {"picky": []}, "one", "two")
    assert refused.value.lines == [
        "one",
        "two",
        "pipeline.stages.picky: reads 'work', which none of its ancestors writes; no selected stage writes it",
    ]


def test_an_error_of_an_option_alone_refuses_the_recipe():
    with pytest.raises(ConfigError) as refused:
        graph_of({"dry": Dry()}, {"dry": []}, "one")
    assert refused.value.lines == ["one"]


def test_a_pipeline_that_selects_no_stage_is_refused_with_the_stages_there_are():
    with pytest.raises(ConfigError) as refused:
        graph_of({}, {}, "one")
    assert refused.value.lines == ["one", "pipeline.stages selects no stage; name at least one of dry, paint, picky"]


def test_a_run_whose_stages_are_all_deleted_is_refused_and_makes_no_output(place: Place):
    planned = place.preheat("mode=plan", "plan.format=json")
    names = [stage["name"] for stage in json.loads(planned.stdout)["stages"]]
    done = place.preheat(*(f"~pipeline.stages.{name}" for name in names))
    assert_refused(done, f"pipeline.stages selects no stage; name at least one of {', '.join(sorted(STAGES))}")
    assert done.stdout == ""
    assert place.left_behind() == ["here/runs"]


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


@pytest.mark.parametrize("override", ["pipeline=on_gpu", "~pipeline.stages.prove", "+pipeline.stages.ask.needs=[plan]"])
def test_mode_verify_together_with_another_pipeline_is_refused(place: Place, override: str):
    done = place.preheat("mode=verify", override)
    assert_refused(done, "mode=verify is pipeline=verify as it is; leave one of them out to change it", override)
    assert not (place.here / "warm").exists()


def test_the_pipeline_verify_can_be_changed_by_its_own_name(place: Place):
    done = place.preheat("mode=plan", "plan.format=json", "pipeline=verify", "~pipeline.stages.prove")
    assert done.returncode == 0, done.stderr
    stages = [stage["name"] for stage in json.loads(done.stdout)["stages"]]
    assert "published" in stages
    assert "prove" not in stages
