from __future__ import annotations

from pipeline.plan.as_tables import explanation_table, plan_tables
from tests.plan.plans import NEEDS, plan_of, size
from tests.servers.recipes import DEEP_GEMM


def test_the_tables_show_problems_absences_buffers_and_stages() -> None:
    shown = "\n".join(table.render() for table in plan_tables(*plan_of(), NEEDS))
    for words in ("4608", "0-7", "all", "lm_head", "forward.dense", "forward.moe", "one arena of", "allocate"):
        assert words in shown, words


def test_there_is_one_row_for_each_problem_absence_phase_and_stage() -> None:
    workload, buffers = plan_of(**DEEP_GEMM)
    problems, absences, phases, stages = plan_tables(workload, buffers, NEEDS)
    assert len(problems.rows) == len(workload.problems)
    assert len(absences.rows) == len(workload.not_deepgemm)
    assert [row[0] for row in phases.rows] == list(buffers.layout.phases)
    assert stages.rows == [("plan", ""), ("allocate", "plan")]


def test_the_explanation_is_a_table_with_its_size_as_the_title() -> None:
    workload, _ = plan_of()
    table = explanation_table(workload, size("512,7168,257"))
    assert table.title == "512x7168 g257: why"
    ((what, layers, ranks, why),) = table.rows
    assert (what, layers, ranks) == ("mlp.experts.w13 512x7168 g257", "3-60", "0-31")
    assert "Triton" in str(why)
