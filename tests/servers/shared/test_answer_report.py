from __future__ import annotations

from pipeline.servers.shared.answer_report import (
    ask_figures,
    ask_summary,
    difference_tables,
    named_only_by,
    wrong_rules,
)
from pipeline.servers.shared.compare import Difference
from pipeline.servers.shared.start import AskedProblem
from tests.servers.shared.places import answer

KV_UP = AskedProblem("GEMM", 1, 2, 1)
BOTH = Difference(AskedProblem("GEMM", 3, 4, 1), "both", "q_proj: a rule")
RULES = Difference(KV_UP, "rules", "kv_b_proj: a rule")
SERVER = Difference(AskedProblem("MASKED", 5, 6, 8), "server", "pipeline stages 0")
ANSWER = answer(
    starts=("one", "two"),
    problems={BOTH.problem: (0,), SERVER.problem: (0,)},
    compiled={"triton": 2, "flashinfer": 0},
    entries={"triton": ["triton/A", "triton/B", "triton/C"], "flashinfer": []},
    cute_dsl=["norm.Norm"],
    autotune_keys=["mm ((1, 64),)", "mm ((2, 64),)"],
    seconds=12.5,
    peak_bytes=7,
    tokens_answered=4,
)


def test_figures_hold_what_was_compiled_and_what_was_there_before():
    figures = ask_figures(ANSWER, [BOTH, RULES, SERVER], version="1.2.3", arguments=["--tp-size", "8"])
    assert (figures.version, figures.arguments, figures.starts) == ("1.2.3", ["--tp-size", "8"], ["one", "two"])
    assert figures.problems == 2
    assert figures.asked_again is True
    assert figures.caches == {
        "triton": {"asked": 3, "compiled": 2, "reused": 1},
        "flashinfer": {"asked": 0, "compiled": 0, "reused": 0},
    }
    assert figures.rules_only == [{"problem": "GEMM 1x2", "where": "kv_b_proj: a rule"}]
    assert figures.server_only == [{"problem": "MASKED 5x6 groups=8", "where": "pipeline stages 0"}]
    assert figures.cute_dsl == ["norm.Norm"]
    assert figures.autotune_keys == ["mm ((1, 64),)", "mm ((2, 64),)"]
    assert (figures.seconds_longest_start, figures.peak_bytes, figures.tokens_answered) == (12.5, 7, 4)
    assert figures.faults == []


def test_a_remembered_answer_compiled_nothing_and_took_no_time():
    remembered = answer(compiled={"triton": 2}, entries={"triton": ["a", "b"]}, seconds=12.5, is_new=False)
    figures = ask_figures(remembered, [], version="1.2.3", arguments=[])
    assert figures.caches == {"triton": {"asked": 2, "compiled": 0, "reused": 2}}
    assert figures.seconds_longest_start is None
    assert figures.asked_again is False


def test_the_summary_counts_everything_once():
    assert ask_summary(ANSWER, [BOTH, RULES, SERVER, SERVER]) == (
        "2 starts: 2 DeepGEMM problems, 3 triton, 1 of CuTe-DSL, which every start compiles again, 2 autotune keys, to "
        "be tuned on the card; 4 tokens answered; rules and server agree on 1, rules alone 1, server alone 2"
    )


def test_the_summary_says_when_the_answer_is_remembered_or_incomplete():
    assert ask_summary(answer(is_new=False), []).startswith("remembered: 0 DeepGEMM problems")
    assert ask_summary(answer(faults=("it crashed",)), []).endswith("; INCOMPLETE: a start ended early")
    assert "INCOMPLETE" not in ask_summary(answer(), [])


def test_faults_are_reported_in_full():
    faults = ("the first\nwith its lines", "the second")
    figures = ask_figures(answer(faults=faults), [], version="1.2.3", arguments=[])
    assert figures.faults == list(faults)


def test_what_only_one_of_the_two_names_is_a_table_with_its_source():
    (table,) = difference_tables([BOTH, RULES, SERVER])
    shown = table.render()
    assert all(part in shown for part in ("GEMM 1x2", "rules", "kv_b_proj: a rule", "MASKED 5x6 groups=8", "server"))
    assert "q_proj" not in shown
    assert difference_tables([BOTH]) == ()
    assert difference_tables([]) == ()


def test_what_both_name_is_in_neither_list():
    differences = [BOTH, RULES, SERVER]
    assert [entry["problem"] for entry in named_only_by("rules", differences)] == ["GEMM 1x2"]
    assert [entry["problem"] for entry in named_only_by("server", differences)] == ["MASKED 5x6 groups=8"]


def test_without_rules_nothing_is_compared():
    figures = ask_figures(ANSWER, None, version="1.2.3", arguments=[])
    assert (figures.problems, figures.rules_only, figures.server_only) == (2, None, None)
    assert ask_summary(ANSWER, None).endswith("; 4 tokens answered; no rules to compare with")


def test_a_wrong_rule_is_one_that_lacks_what_the_server_names():
    assert wrong_rules([BOTH, RULES]) == []
    first, line = wrong_rules([BOTH, RULES, SERVER])
    assert first.startswith("1 problems that only the server names: a rule is wrong")
    assert line == "MASKED 5x6 groups=8 (pipeline stages 0)"
