from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pipeline.servers.shared.answer import ServerAnswer, ask_and_keep, recall
from pipeline.servers.shared.digest import answer_digest
from pipeline.servers.shared.inquiry import Inquiry
from pipeline.servers.shared.start import AskedProblem
from tests.servers.shared.places import Place, answer, ignore_progress

KV_DOWN = AskedProblem("GEMM_NT_F8F8BF16", 2112, 7168, 1)
GATE_UP = AskedProblem("GEMM_NT_F8F8BF16", 36864, 7168, 1)


def keep(place: Place, inquiry: Inquiry) -> tuple[ServerAnswer, ServerAnswer | None]:
    """The answer to this run, and the one that a later run would find."""
    digest = answer_digest(inquiry)
    kept = ask_and_keep(place.places.store, digest, lambda deep_gemm: inquiry.ask(deep_gemm, ignore_progress))
    return kept, recall(place.places.store, digest)


def test_an_incomplete_answer_is_not_remembered_and_what_was_learnt_stays(tmp_path: Path):
    place = Place(tmp_path)
    kept, recalled = keep(place, place.inquiry("--crash"))
    assert recalled is None
    assert kept.stub_cache.is_dir()
    assert list(kept.problems) == [KV_DOWN]


def test_a_complete_answer_is_remembered_whole(tmp_path: Path):
    place = Place(tmp_path)
    kept, recalled = keep(place, place.inquiry("--stages", "2"))
    assert recalled is not None
    assert kept.stub_cache.is_dir()
    assert recalled.problems == kept.problems == {KV_DOWN: (0, 1), GATE_UP: (0,)}
    assert (kept.is_new, recalled.is_new) == (True, False)
    assert replace(recalled, is_new=True) == kept
    assert (recalled.stub_cache / "cache" / "gemm.a" / "kernel.cu").read_text() == "source"


def test_a_later_answer_takes_the_place_of_an_earlier_one(tmp_path: Path):
    for seconds in (1.0, 2.0):
        kept = ask_and_keep(tmp_path, "digest", lambda cache, s=seconds: answer(stub_cache=cache, seconds=s))
        assert kept.seconds == seconds
    recalled = recall(tmp_path, "digest")
    assert recalled is not None
    assert recalled.seconds == 2.0


def test_what_is_kept_holds_every_figure_and_no_path():
    kept = answer(problems={GATE_UP: (0, 2)}, stub_cache=Path("/elsewhere")).to_json()
    assert kept["problems"] == [["GEMM_NT_F8F8BF16", 36864, 7168, 1, [0, 2]]]
    assert kept["tokens_answered"] == 1
    assert "elsewhere" not in json.dumps(kept)
