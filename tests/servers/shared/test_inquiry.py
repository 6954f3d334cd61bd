from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.shared.inquiry import most_of_each
from pipeline.servers.shared.start import AskedProblem
from tests.servers.shared.places import DEEP_GEMM_VARIABLE, Place, ignore_progress

KV_DOWN = AskedProblem("GEMM_NT_F8F8BF16", 2112, 7168, 1)
GATE_UP = AskedProblem("GEMM_NT_F8F8BF16", 36864, 7168, 1)


def test_every_pipeline_rank_is_started_in_every_variant_and_problems_know_their_pipeline_ranks(tmp_path: Path):
    variants = {"as configured": ["--stages", "3"], "without graphs": ["--stages", "3", "--cuda-graph-off"]}
    answer = Place(tmp_path).ask(variants=variants)
    assert len(answer.starts) == 6
    assert answer.starts[0] == "as configured, stage 0"
    assert answer.problems == {KV_DOWN: (0, 1, 2), GATE_UP: (0,)}
    assert answer.tokens_answered == 6 * 2
    assert answer.faults == ()


def test_other_caches_are_filled_for_real_and_counted(tmp_path: Path):
    first = Place(tmp_path).ask()
    assert first.entries["flashinfer"] == [".cache/flashinfer/0.7.2/90a/cached_ops/norm"]
    assert first.compiled["flashinfer"] == 1
    second = Place(tmp_path).ask()
    assert second.entries["flashinfer"] == first.entries["flashinfer"]
    assert second.compiled["flashinfer"] == 0


def test_cute_dsl_kernels_count_once_for_all_starts(tmp_path: Path):
    answer = Place(tmp_path).ask(variants={"as configured": ["--stages", "2"]})
    assert answer.cute_dsl == ["delta.Rule", "delta.Rule", "norm.Norm"]
    assert most_of_each([["a", "b", "a"], ["b", "c"], []]) == ["a", "a", "b", "c"]


def test_autotune_keys_are_those_of_all_starts(tmp_path: Path):
    answer = Place(tmp_path).ask(variants={"as configured": ["--stages", "2"]})
    assert answer.autotune_keys == ["mm ((1, 64),)", "mm ((2, 64),)"]


def test_arguments_that_the_server_refuses_come_back_in_its_own_words(tmp_path: Path):
    with pytest.raises(ConfigError, match="server.args: unrecognized arguments: --bogus"):
        Place(tmp_path).ask("--refuse")


def test_what_was_asked_before_a_crash_is_kept_with_the_server_s_last_words(tmp_path: Path):
    answer = Place(tmp_path).ask("--crash")
    assert list(answer.problems) == [KV_DOWN]
    (fault,) = answer.faults
    assert "as configured, stage 0" in fault
    assert "RuntimeError: the weights are lost" in fault


def test_a_server_that_hangs_is_ended_and_shows_its_stack(tmp_path: Path):
    started_s = time.monotonic()
    answer = Place(tmp_path, limit_s=2).ask("--hang")
    assert time.monotonic() - started_s < 30
    (fault,) = answer.faults
    assert fault.startswith(
        "the server (as configured, stage 0) did not come to its end before server.start_limit_s was over"
    )
    assert "fake_rank.py" in fault


def test_an_unanswered_call_is_named(tmp_path: Path):
    (fault,) = Place(tmp_path).ask("--unanswered", "cuArrayCreate_v2").faults
    assert "the virtual GPU does not answer cuArrayCreate_v2" in fault


def test_the_caller_s_variables_win_over_those_of_the_recipe_and_these_over_the_starter_s(tmp_path: Path):
    inquiry = replace(Place(tmp_path).inquiry(), variables={"FAKE_CACHE_DIR": str(tmp_path / "of the recipe")})
    inquiry.ask(tmp_path / "stubs", ignore_progress, {DEEP_GEMM_VARIABLE: str(tmp_path / "of the caller")})
    assert (tmp_path / "of the recipe" / ".cache").is_dir()
    assert (tmp_path / "of the caller" / "cache" / "gemm.a").is_dir()
    assert not (tmp_path / "stubs").exists()


def test_progress_adds_up_what_all_starts_have_served(tmp_path: Path):
    seen: list[tuple[int, int]] = []
    inquiry = Place(tmp_path).inquiry("--stages", "2", "--linger")
    inquiry.ask(tmp_path / "stubs", lambda done, total: seen.append((done, total)))
    assert seen == [(100, 100), (200, 200)]
