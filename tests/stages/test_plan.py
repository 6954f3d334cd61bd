from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.figures import PlanFigures
from pipeline.recipe import DiscoverySource, Node, Pipeline, Recipe
from pipeline.slots import BUFFER_PLAN, NO_RULES, WORKLOAD
from pipeline.workload.parallel import Parallel
from stages.plan import Plan, PlanFormat
from tests.servers.recipes import deepseek, layout
from tests.stages.runs import NOT_KNOWN, UNKNOWN, Bench, completed, recipe_of, recipe_without_rules


def over_four_pipeline_ranks(**flags: Any) -> Recipe:
    """DeepSeek-V3 in the layout pp4, with a pipeline of two stages."""
    recipe = recipe_of(deepseek(), layout("pp4"), **flags)
    recipe.pipeline = Pipeline(name="short", stages={"plan": Node(), "allocate": Node(needs=["plan"])})
    return recipe


def test_the_plan_fills_both_slots_and_counts() -> None:
    bench = Bench(over_four_pipeline_ranks())
    result = completed(bench.run(Plan()))
    workload = bench.context.read(WORKLOAD)
    assert result.figures == (
        PlanFigures(
            problems=len(workload.problems),
            ranks=32,
            not_deepgemm=len(workload.not_deepgemm),
            rules=list(workload.rules.used),
        ),
    )
    assert result.summary == f"{len(workload.problems)} problems over 32 ranks"
    assert bench.context.read(BUFFER_PLAN).layout.arena_bytes > 0
    assert bench.allocated == {"plan": 0}


def test_a_plan_touches_no_folder() -> None:
    bench = Bench()
    bench.run(Plan())
    assert not bench.places.output.exists()
    assert not bench.places.store.exists()


def test_a_wrong_recipe_is_a_config_error_with_every_line() -> None:
    wrong = recipe_of(deepseek(), Parallel(tp=8, attn_dp=3), tokens_per_request=0)
    with pytest.raises(ConfigError) as caught:
        Bench(wrong).run(Plan())
    assert len(caught.value.lines) == 2
    assert Plan().config_errors(wrong) == caught.value.lines, "validation names the same"


@pytest.mark.parametrize("explain", ["", "7168", "a,b", "1,2,3,4", "-1,2"])
def test_a_size_that_is_none_is_a_config_error(explain: str) -> None:
    (line,) = Plan(explain=explain).config_errors(recipe_of())
    assert "plan.explain must be N,K or N,K,groups" in line


@pytest.mark.parametrize("explain", [None, "7168,512", "7168, 512, 8"])
def test_a_size_with_or_without_groups_is_none_of_the_errors(explain: str | None) -> None:
    assert Plan(explain=explain).config_errors(recipe_of()) == []


def test_a_checkpoint_that_cannot_be_read_is_named_before_the_run(tmp_path: Path) -> None:
    recipe = recipe_of()
    recipe.model.hf_config = str(tmp_path)
    (line,) = Plan().config_errors(recipe)
    assert str(tmp_path) in line


def test_the_preview_is_a_table_for_each_part_of_the_plan() -> None:
    shown = Plan().preview(over_four_pipeline_ranks())
    titles = ("Problems for DeepGEMM", "Not for DeepGEMM", "Buffers: one arena of", "Stages")
    assert [title for title in titles if title not in shown] == []


def test_the_preview_as_json_is_one_object_on_one_line() -> None:
    shown = Plan(format=PlanFormat.json).preview(over_four_pipeline_ranks())
    plan = json.loads(shown)
    assert set(plan) == {"problems", "rules", "not_deepgemm", "buffers", "stages"}
    assert plan["stages"] == [{"name": "plan", "needs": []}, {"name": "allocate", "needs": ["plan"]}]
    assert "\n" not in shown


def test_the_explanation_replaces_the_tables() -> None:
    shown = Plan(explain="4608,7168").preview(over_four_pipeline_ranks())
    assert "4608x7168: why" in shown
    assert "mlp.gate_up_proj" in shown
    assert "Not for DeepGEMM" not in shown


def test_the_explanation_is_added_to_the_json() -> None:
    shown = Plan(format=PlanFormat.json, explain="4608,7168").preview(over_four_pipeline_ranks())
    plan = json.loads(shown)
    (line,) = plan["explain"]
    assert line["what"] == "dense 4608x7168: mlp.gate_up_proj"
    assert len(plan["problems"]) > 1, "the plan is there as well"


def test_without_rules_the_plan_says_who_is_asked_and_fills_neither_slot() -> None:
    bench = Bench(recipe_without_rules())
    result = completed(bench.run(Plan()))
    assert result.summary == NOT_KNOWN
    assert result.figures == (PlanFigures(ranks=1, no_rules=NOT_KNOWN),)
    assert bench.context.read(NO_RULES).subjects == (UNKNOWN,)
    assert bench.context.writer(WORKLOAD) is bench.context.writer(BUFFER_PLAN) is None


def test_without_rules_the_preview_is_the_sentence_and_the_stages() -> None:
    recipe = recipe_without_rules(pipeline=Pipeline(stages={"plan": Node(), "ask": Node(needs=["plan"])}))
    for explain in (None, "7168,512"):
        shown = Plan(explain=explain).preview(recipe)
        assert shown.startswith(NOT_KNOWN)
        assert "Stages" in shown
        assert "Problems for DeepGEMM" not in shown


def test_without_rules_the_json_has_null_for_what_nobody_derived() -> None:
    plan = json.loads(Plan(format=PlanFormat.json).preview(recipe_without_rules()))
    assert plan == {
        "problems": None,
        "rules": None,
        "not_deepgemm": None,
        "buffers": None,
        "stages": [],
        "no_rules": NOT_KNOWN,
    }


@pytest.mark.parametrize("discovery", [DiscoverySource.rules, DiscoverySource.both])
def test_where_the_rules_are_used_a_model_without_them_is_refused(discovery: DiscoverySource) -> None:
    (line,) = Plan().config_errors(recipe_without_rules(discovery=discovery))
    assert UNKNOWN in line
    assert "discovery=server asks the server" in line


def test_what_no_server_would_accept_is_wrong_without_rules_too() -> None:
    recipe = recipe_without_rules(parallel=Parallel(tp=8, attn_dp=3))
    (line,) = Plan().config_errors(recipe)
    assert "parallel.attn_dp" in line
    assert Plan().config_errors(recipe_without_rules()) == []
