from __future__ import annotations

import time
from pathlib import Path

import pytest

from pipeline.asking.layout import ask_digest, ask_in, recall
from pipeline.asking.start import AskedProblem
from pipeline.engine.errors import ConfigError
from tests.asking.places import Place

KV_DOWN = AskedProblem("GEMM_NT_F8F8BF16", 2112, 7168, 1)
GATE_UP = AskedProblem("GEMM_NT_F8F8BF16", 36864, 7168, 1)


def test_every_stage_is_started_in_every_variant_and_problems_know_their_stages(tmp_path: Path):
    ways = {"as configured": ["--stages", "3"], "without graphs": ["--stages", "3", "--cuda-graph-off"]}
    asked = Place(tmp_path).ask(variants=ways)
    assert len(asked.starts) == 6
    assert asked.starts[0] == "as configured, stage 0"
    assert asked.problems == {KV_DOWN: (0, 1, 2), GATE_UP: (0,)}
    assert asked.tokens_answered == 6 * 2
    assert asked.faults == ()


def test_other_caches_are_filled_for_real_and_counted(tmp_path: Path):
    first = Place(tmp_path).ask()
    assert first.there["flashinfer"] == [".cache/flashinfer/0.7.2/90a/cached_ops/norm"]
    assert first.compiled["flashinfer"] == 1
    second = Place(tmp_path).ask()
    assert second.there["flashinfer"] == first.there["flashinfer"]
    assert second.compiled["flashinfer"] == 0


def test_cute_dsl_kernels_count_once_for_all_starts(tmp_path: Path):
    asked = Place(tmp_path).ask(variants={"as configured": ["--stages", "2"]})
    assert asked.cute_dsl == ["delta.Rule", "delta.Rule", "norm.Norm"]


def test_autotune_keys_are_those_of_all_starts(tmp_path: Path):
    asked = Place(tmp_path).ask(variants={"as configured": ["--stages", "2"]})
    assert asked.autotune_keys == ["mm ((1, 64),)", "mm ((2, 64),)"]


def test_arguments_that_the_server_refuses_come_back_in_its_own_words(tmp_path: Path):
    with pytest.raises(ConfigError, match="server.args: unrecognized arguments: --bogus"):
        Place(tmp_path).ask("--refuse")


def test_what_was_asked_before_a_crash_is_kept_with_the_server_s_last_words(tmp_path: Path):
    asked = Place(tmp_path).ask("--crash")
    assert list(asked.problems) == [KV_DOWN]
    (fault,) = asked.faults
    assert "as configured, stage 0" in fault
    assert "RuntimeError: the weights are lost" in fault


def test_a_server_that_hangs_is_ended_and_shows_its_stack(tmp_path: Path):
    started_s = time.monotonic()
    asked = Place(tmp_path, limit_s=2).ask("--hang")
    assert time.monotonic() - started_s < 30
    (fault,) = asked.faults
    assert fault.startswith("the server (as configured, stage 0) did not come to its end before ask.limit_s was over")
    assert "fake_rank.py" in fault


def test_an_unanswered_call_is_named(tmp_path: Path):
    (fault,) = Place(tmp_path).ask("--unanswered", "cuArrayCreate_v2").faults
    assert "the virtual GPU does not answer cuArrayCreate_v2" in fault


def test_an_answer_is_remembered_whole_and_an_incomplete_one_is_not(tmp_path: Path):
    place = Place(tmp_path)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    for ways, is_kept in (({"as configured": ["--crash"]}, False), ({"as configured": ["--stages", "2"]}, True)):
        digest = ask_digest(place.starter, ways, checkpoint)
        asked = ask_in(tmp_path / "store", digest, place.starter, ways, {}, place.progress)
        known = recall(tmp_path / "store", digest)
        assert (known is not None) == is_kept
        assert asked.stub_cache.is_dir(), "what was learnt is there in both cases"
        if known is not None:
            assert known.problems == asked.problems == {KV_DOWN: (0, 1), GATE_UP: (0,)}
            assert (asked.is_new, known.is_new) == (True, False)
            assert (known.stub_cache / "cache" / "gemm.a" / "kernel.cu").read_text() == "source"


@pytest.mark.parametrize("changed", ["arguments", "checkpoint", "environment", "nothing"])
def test_a_digest_holds_what_decides_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str):
    starter = Place(tmp_path).starter
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "config.json").write_text("{}")
    ways = {"as configured": ["--tp-size", "8", str(checkpoint)]}
    before = ask_digest(starter, ways, checkpoint)
    if changed == "arguments":
        ways = {"as configured": ["--tp-size", "4", str(checkpoint)]}
    if changed == "environment":
        monkeypatch.setenv("SGLANG_USE_DEEPGEMM_BMM", "1")
    if changed == "checkpoint":
        # Another folder: the digest of a folder is remembered while the process lives.
        checkpoint = tmp_path / "other"
        checkpoint.mkdir()
        (checkpoint / "config.json").write_text('{"hidden_size": 1}')
        ways = {"as configured": ["--tp-size", "8", str(checkpoint)]}
    assert (ask_digest(starter, ways, checkpoint) == before) == (changed == "nothing")
