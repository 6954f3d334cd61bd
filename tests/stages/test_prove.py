"""The stage over the fake server of tests/servers/shared, which calls nvcc for what its caches lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.engine.errors import VerifyError
from pipeline.figures import ProofFigures
from pipeline.slots import BAKED, INQUIRY, Baked
from stages.prove import Prove
from tests.servers.shared.places import Place
from tests.stages.runs import Bench, completed, figures_of, skipped

BAKED_NOTHING = Baked(sources=[], problems=())


def proving(folder: Path, *arguments: str) -> Bench:
    """A bench whose server is the fake one, with DeepGEMM's kernel published."""
    place = Place(folder)
    (place.places.warm_cache / "cache" / "gemm.a").mkdir(parents=True, exist_ok=True)
    return Bench(folder=folder, seeds={INQUIRY: place.inquiry(*arguments), BAKED: BAKED_NOTHING})


def test_without_an_inquiry_no_server_is_started() -> None:
    result = skipped(Bench(seeds={BAKED: BAKED_NOTHING}).run(Prove()))
    assert result.reason == "discovery=rules starts no server"
    assert result.figures == ()


def test_a_server_over_full_caches_compiles_nothing_and_answers(tmp_path: Path) -> None:
    Place(tmp_path).ask()
    result = completed(proving(tmp_path).run(Prove()))
    figures = figures_of(ProofFigures, result)
    assert result.summary == "1 starts with every compiler hidden: 0 compiled, 2 tokens answered"
    assert (figures.proof_starts, figures.proof_tokens_answered, figures.proof_compiler_calls) == (1, 2, [])
    assert not any((figures.proof_missing or {}).values())
    assert (figures.proof_seconds or 0) > 0


def test_a_module_that_lacks_is_a_fault_with_what_was_measured(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match="cached_ops/norm was compiled again") as caught:
        proving(tmp_path).run(Prove())
    (figures,) = caught.value.figures
    assert isinstance(figures, ProofFigures)
    assert figures.proof_compiler_calls == ["nvcc --shared norm.cu"]
    assert (figures.proof_seconds or 0) > 0


def test_a_server_that_does_not_answer_is_no_proof(tmp_path: Path) -> None:
    Place(tmp_path).ask()
    with pytest.raises(VerifyError, match="the weights are lost"):
        proving(tmp_path, "--crash").run(Prove())


def test_a_proof_leaves_no_working_folder(tmp_path: Path) -> None:
    Place(tmp_path).ask()
    bench = proving(tmp_path)
    bench.run(Prove())
    assert list(bench.places.scratch.iterdir()) == []


def test_progress_counts_the_requests_served(tmp_path: Path) -> None:
    Place(tmp_path).ask()
    bench = proving(tmp_path, "--linger")
    bench.run(Prove())
    progress = [(event.stage, event.data["what"], event.data["done"], event.data["total"]) for event in bench.events]
    assert progress == [("prove", "% of the requests served", 100, 100)]
