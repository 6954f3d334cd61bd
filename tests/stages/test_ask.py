"""The stage over the fake server of tests/servers/shared, started as a child and with no virtual GPU loaded."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.engine.errors import ConfigError, HostError, WrongRuleError
from pipeline.figures import AskFigures
from pipeline.recipe import DiscoverySource, Recipe
from pipeline.servers.shared.flashinfer_provider import PROVIDER
from pipeline.servers.shared.inquiry import Inquiry
from pipeline.slots import ANSWER, INQUIRY
from stages.ask import Ask, shown_arguments
from stages.plan import Plan
from tests.servers.shared.places import Place
from tests.stages.runs import Bench, completed, figures_of, recipe_of, recipe_without_rules, skipped


def bench_of(inquiry: Inquiry, folder: Path, recipe: Recipe | None = None) -> Bench:
    """A bench that has planned, in the folder that the inquiry's server fills."""
    bench = Bench(recipe or recipe_of(), folder=folder, seeds={INQUIRY: inquiry})
    bench.run(Plan())
    return bench


def ask(folder: Path, *arguments: str) -> AskFigures:
    """Ask the fake server in a run of its own; what the stage reports."""
    return figures_of(AskFigures, bench_of(Place(folder).inquiry(*arguments), folder).run(Ask()))


def test_without_an_inquiry_no_server_is_started() -> None:
    bench = Bench()
    result = skipped(bench.run(Plan(), Ask()))
    assert result.reason == "discovery=rules starts no server"
    assert bench.context.writer(ANSWER) is None
    assert not bench.places.output.exists()


def test_what_the_server_answers_is_handed_on_and_reported(tmp_path: Path) -> None:
    bench = bench_of(Place(tmp_path).inquiry("--stages", "2"), tmp_path)
    result = completed(bench.run(Ask()))
    answer = bench.context.read(ANSWER)
    assert {(problem.n, problem.k): ranks for problem, ranks in answer.problems.items()} == {
        (2112, 7168): (0, 1),
        (36864, 7168): (0,),
    }
    assert (answer.stub_cache / "cache" / "gemm.a" / "kernel.cu").is_file()
    figures = figures_of(AskFigures, result)
    assert (figures.version, figures.asked_again, figures.problems) == ("1.2.3", True, 2)
    assert figures.starts == ["as configured, stage 0", "as configured, stage 1"]
    assert figures.faults == []
    assert result.summary.startswith("2 starts: 2 DeepGEMM problems, 1 flashinfer")


def test_what_only_one_of_rules_and_server_names_is_a_table_with_its_source(tmp_path: Path) -> None:
    result = completed(bench_of(Place(tmp_path).inquiry(), tmp_path).run(Ask()))
    figures = figures_of(AskFigures, result)
    assert figures.server_only == [
        {"problem": "GEMM_NT_F8F8BF16 2112x7168", "where": "pipeline stages 0"},
        {"problem": "GEMM_NT_F8F8BF16 36864x7168", "where": "pipeline stages 0"},
    ]
    assert figures.rules_only, "the fake server serves another model than the rules know"
    (table,) = result.tables
    assert len(table.rows) == len(figures.rules_only) + 2
    assert all(part in table.render() for part in ("GEMM_NT_F8F8BF16 2112x7168", "server", "rules"))


def test_flashinfer_is_told_where_the_modules_are(tmp_path: Path) -> None:
    ask(tmp_path)
    modules = (tmp_path / "out" / PROVIDER / "flashinfer_jit_cache" / "modules.json").read_text()
    assert all(part in modules for part in ("norm", "0.7.2", "sm90a"))


def test_a_second_run_remembers_the_answer_and_starts_nothing(tmp_path: Path) -> None:
    assert ask(tmp_path).asked_again is True
    again = ask(tmp_path)
    assert again.asked_again is False
    assert again.caches == {
        "flashinfer": {"asked": 1, "compiled": 0, "reused": 1},
        "triton": {"asked": 0, "compiled": 0, "reused": 0},
    }


def test_an_output_without_the_other_caches_is_filled_by_asking_again(tmp_path: Path) -> None:
    ask(tmp_path)
    shutil.rmtree(tmp_path / "out")
    again = ask(tmp_path)
    assert again.asked_again is True
    assert again.caches is not None
    assert again.caches["flashinfer"] == {"asked": 1, "compiled": 1, "reused": 0}


def test_arguments_that_the_server_refuses_are_a_config_error_in_its_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="server.args: unrecognized arguments: --bogus"):
        ask(tmp_path, "--refuse")


def test_a_start_that_ended_early_is_reported_and_what_it_asked_is_kept(tmp_path: Path) -> None:
    bench = bench_of(Place(tmp_path).inquiry("--crash"), tmp_path)
    result = completed(bench.run(Ask()))
    assert len(bench.context.read(ANSWER).problems) == 1
    (fault,) = figures_of(AskFigures, result).faults or []
    assert "the weights are lost" in fault
    assert result.summary.endswith("INCOMPLETE: a start ended early")
    assert ask(tmp_path, "--crash").asked_again is True, "an incomplete answer is not remembered"


def test_an_output_that_cannot_be_written_is_named_before_the_server_starts(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(HostError, match=r"^output\.dir: cannot make "):
        ask(tmp_path)


def test_progress_counts_the_requests_served(tmp_path: Path) -> None:
    bench = bench_of(Place(tmp_path).inquiry("--linger"), tmp_path)
    bench.run(Ask())
    progress = [(event.stage, event.data["what"], event.data["done"], event.data["total"]) for event in bench.events]
    assert progress == [("ask", "% of the requests served", 100, 100)]


def test_the_report_shows_the_first_variant_without_the_path_of_the_checkpoint(tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    variants = {"first": ["--model-path", checkpoint, "--tp-size", "2"], "second": ["--other"]}
    inquiry = Place(tmp_path).inquiry(variants=variants)
    assert shown_arguments(inquiry) == ["--model-path", "CHECKPOINT", "--tp-size", "2"]


def test_without_rules_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    result = completed(bench_of(Place(tmp_path).inquiry(), tmp_path, recipe_without_rules()).run(Ask()))
    figures = figures_of(AskFigures, result)
    assert (figures.problems, figures.rules_only, figures.server_only) == (2, None, None)
    assert result.summary.endswith("no rules to compare with")
    assert (result.tables, result.incomplete) == ((), None)


def test_with_both_a_problem_that_only_the_server_names_is_a_wrong_rule(tmp_path: Path) -> None:
    recipe = replace(recipe_of(), discovery=DiscoverySource.both)
    result = completed(bench_of(Place(tmp_path).inquiry(), tmp_path, recipe).run(Ask()))
    assert isinstance(result.incomplete, WrongRuleError)
    assert result.incomplete.exit_code == 6
    for part in ("2 problems that only the server names", "2112x7168", "36864x7168", "ask.accept_differences=true"):
        assert part in str(result.incomplete)


@pytest.mark.parametrize(
    ("discovery", "accepts"),
    [(DiscoverySource.both, True), (DiscoverySource.server, False)],
    ids=["accepted", "server"],
)
def test_differences_that_are_accepted_or_do_not_count_end_nothing(
    tmp_path: Path, discovery: DiscoverySource, accepts: bool
) -> None:
    recipe = replace(recipe_of(), discovery=discovery)
    bench = bench_of(Place(tmp_path).inquiry(), tmp_path, recipe)
    result = completed(bench.run(Ask(accept_differences=accepts)))
    assert figures_of(AskFigures, result).server_only
    assert result.incomplete is None
