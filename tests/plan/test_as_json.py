from __future__ import annotations

import json
from typing import Any

from pipeline.plan.as_json import explanation_json, plan_json
from tests.plan.plans import NEEDS, plan_of, size
from tests.servers.recipes import DEEP_GEMM


def as_json(**flags: Any) -> dict[str, Any]:
    """The plan after a round trip through text."""
    return json.loads(json.dumps(plan_json(*plan_of(**flags), NEEDS)))


def explained(text: str, **flags: Any) -> list[dict[str, Any]]:
    """The explanation of a size after a round trip through text."""
    workload, _ = plan_of(**flags)
    return json.loads(json.dumps(explanation_json(workload, size(text))))


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


def test_the_rules_that_the_version_chose_are_listed() -> None:
    workload, _ = plan_of()
    assert as_json()["rules"] == list(workload.rules.used)


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
