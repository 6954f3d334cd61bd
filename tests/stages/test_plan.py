from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.slots import BUFFER_PLAN, WORKLOAD
from pipeline.workload.parallel import Parallel
from stages.plan import Plan, explanation, make_plan, plan_json, plan_tables, spans
from tests.stages.runs import Bench, recipe_of
from tests.workload.recipes import DEEP_GEMM, ROOT, deepseek, layout, shipped

NEEDS = {"plan": [], "allocate": ["plan"]}
WITHOUT_TORCH = """
import sys
from stages.plan import make_plan, plan_json, plan_tables
from pipeline.recipe import Recipe
from tests.workload.recipes import deepseek, layout, server, target
recipe = Recipe(model=deepseek(), parallel=layout("pp4"), server=server(), target=target())
plan = make_plan(recipe)
plan_json(*plan, {}), plan_tables(*plan)
print([name for name in ("torch", "deep_gemm", "flashinfer") if name in sys.modules])
"""


def as_json(**flags: Any) -> dict[str, Any]:
    """The plan of DeepSeek-V3 over four stages, after a round trip through text."""
    recipe = recipe_of(deepseek(), layout("pp4"), **flags)
    return json.loads(json.dumps(plan_json(*make_plan(recipe), NEEDS)))


def test_the_plan_fills_both_slots_and_counts() -> None:
    bench = Bench(recipe_of(deepseek(), layout("pp4")))
    result = bench.run(Plan())
    workload = bench.context.read(WORKLOAD)
    assert result.figures == {
        "problems": len(workload.problems),
        "ranks": 32,
        "not_deepgemm": len(workload.not_deepgemm),
        "rules": list(workload.rules.used),
    }
    assert bench.context.read(BUFFER_PLAN).layout.arena_bytes > 0
    assert bench.allocated == {"plan": 0}


def test_a_wrong_recipe_is_a_config_error_with_every_line() -> None:
    with pytest.raises(ConfigError) as caught:
        Bench(recipe_of(deepseek(), Parallel(tp=8, attn_dp=3), tokens_per_request=0)).run(Plan())
    assert len(caught.value.problems) == 2


def names(group: str) -> list[str]:
    """The shipped files of a group."""
    return [path.stem for path in sorted((ROOT / "conf" / group).glob("*.yaml"))]


def planned(model: str, where: str, **flags: Any) -> dict[str, Any] | None:
    """The plan, None when the server would refuse the layout."""
    try:
        return plan_json(*make_plan(recipe_of(shipped(model), layout(where), **flags)), NEEDS)
    except ConfigError:
        return None


@pytest.mark.parametrize("model", names("model"))
def test_every_shipped_pair_is_planned_or_refused_at_once(model: str) -> None:
    """Starting python and composing the recipe take most of the 3 seconds that a plan may take."""
    started_s = time.monotonic()
    plans = list[dict[str, Any]]()
    for flags in ({}, {"name": "vllm", "version": "0.33.0"}):
        plans += [plan for where in names("parallel") if (plan := planned(model, where, **flags)) is not None]
    assert time.monotonic() - started_s < len(names("parallel"))
    assert len(plans) >= len(names("parallel")) / 2
    for plan in plans:
        assert plan["not_deepgemm"]
        assert plan["buffers"]["arena_bytes"] > 0
        assert all(problem["m_count"] > 0 for problem in plan["problems"])


def test_a_plan_imports_no_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (child.stdout.strip(), child.stderr) == ("[]", "")


def test_each_problem_of_the_json_says_what_is_launched_where_and_why() -> None:
    problems = {(problem["n"], problem["k"]): problem for problem in as_json()["problems"]}
    assert problems[4608, 7168] == {
        "kernel": "GEMM_NT_F8F8BF16",
        "n": 4608,
        "k": 7168,
        "groups": 1,
        "m_count": 16384,
        "m_min": 1,
        "m_max": 16384,
        "linears": ["mlp.gate_up_proj"],
        "layers": [0, 1, 2],
        "ranks": list(range(8)),
        "rule": problems[4608, 7168]["rule"],
        "options": {},
        "server_warmup_calls": None,
    }
    assert all(".py" in problem["rule"] for problem in problems.values())


def explained(asked: str, **flags: Any) -> list[dict[str, Any]]:
    workload, _ = make_plan(recipe_of(deepseek(), layout("pp4"), **flags))
    return explanation(workload, asked)


def test_a_problem_that_is_there_is_explained_by_linears_layers_ranks_and_rule() -> None:
    (line,) = explained("4608,7168")
    assert line["what"] == "dense 4608x7168: mlp.gate_up_proj"
    assert (line["layers"], line["ranks"]) == ([0, 1, 2], list(range(8)))
    assert ".py" in line["why"]


def test_a_problem_that_goes_elsewhere_is_explained_by_the_reason() -> None:
    (line,) = explained("512,7168,257")
    assert line["what"] == "mlp.experts.w13 512x7168 g257"
    assert (line["layers"], line["ranks"]) == (list(range(3, 61)), list(range(32)))
    assert "Triton" in line["why"]
    masked, contiguous = explained("512,7168", **DEEP_GEMM)
    assert [line["what"].split()[0] for line in (masked, contiguous)] == ["masked", "contiguous"]


def test_a_problem_that_no_linear_has_is_answered_by_what_comes_near() -> None:
    assert {line["what"] for line in explained("999,1536")} == {"self_attn.q_b_proj 3072x1536"}
    (line,) = explained("999,998")
    assert "no linear of this model and layout has this N or this K" in line["why"]


@pytest.mark.parametrize("asked", ["", "7168", "a,b", "1,2,3,4", "-1,2"])
def test_a_size_that_is_none_is_a_config_problem(asked: str) -> None:
    (line,) = Plan(explain=asked).problems()
    assert "plan.explain must be N,K or N,K,groups" in line


def test_the_json_lists_what_is_not_launched_with_its_reason() -> None:
    entries = as_json()["not_deepgemm"]
    assert {"mlp.experts.w13 512x7168", "lm_head"} <= {entry["layer"] for entry in entries}
    assert all(entry["reason"] for entry in entries)


def test_the_json_holds_the_arena_its_slots_and_the_needs() -> None:
    plan = as_json(**DEEP_GEMM)
    slots = plan["buffers"]["slots"]
    assert plan["buffers"]["arena_bytes"] < plan["buffers"]["sum_of_stage_bytes"]
    assert all(slot["offset"] + slot["bytes"] <= plan["buffers"]["arena_bytes"] for slot in slots)
    assert {"decode.seq_lens", "forward.moe.hidden"} <= {slot["name"] for slot in slots}
    assert plan["stages"] == [{"name": "plan", "needs": []}, {"name": "allocate", "needs": ["plan"]}]


def test_the_tables_show_problems_absences_and_buffers() -> None:
    shown = "\n".join(table.render() for table in plan_tables(*make_plan(recipe_of(deepseek(), layout("pp4")))))
    for words in ("4608", "0-7", "all", "lm_head", "forward.dense", "forward.moe", "one arena of"):
        assert words in shown, words


@pytest.mark.parametrize(
    ("numbers", "shown"),
    [([], ""), ([5], "5"), ([0, 1, 2], "0-2"), ([0, 1, 2, 5], "0-2, 5"), ([1, 3, 4, 9], "1, 3-4, 9")],
    ids=str,
)
def test_ascending_numbers_are_shown_as_spans(numbers: list[int], shown: str) -> None:
    assert spans(numbers) == shown
