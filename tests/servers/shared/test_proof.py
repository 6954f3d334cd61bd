from __future__ import annotations

from pathlib import Path

from pipeline.figures import ProofFigures
from pipeline.servers.shared.proof import start_without_compilers
from tests.servers.shared.places import Place, ignore_progress


def prove(place: Place, *arguments: str) -> tuple[ProofFigures, list[str]]:
    (place.places.warm_cache / "cache").mkdir(parents=True, exist_ok=True)
    return start_without_compilers(place.inquiry(*arguments), place.places, place.folder / "proof", ignore_progress)


def publish_kernel(place: Place) -> None:
    (place.places.warm_cache / "cache" / "gemm.a").mkdir(parents=True)


def test_a_start_over_full_caches_compiles_nothing_and_answers(tmp_path: Path):
    place = Place(tmp_path)
    place.ask()
    publish_kernel(place)
    figures, faults = prove(place)
    assert faults == []
    assert figures.proof_starts == 1
    assert figures.proof_tokens_answered == 2
    assert figures.proof_compiler_calls == []
    assert figures.proof_missing == {"deep_gemm": [], "flashinfer": [], "triton": []}


def test_a_module_and_a_kernel_that_lack_are_named_with_the_compiler_that_was_called(tmp_path: Path):
    place = Place(tmp_path)
    place.ask("--crash")
    figures, faults = prove(place)
    text = "\n".join(faults)
    assert "flashinfer: .cache/flashinfer/0.7.2/90a/cached_ops/norm was compiled again" in text
    assert "deep_gemm: gemm.a was compiled again" in text
    assert "a hidden compiler was called: nvcc --shared norm.cu" in text
    assert figures.proof_compiler_calls == ["nvcc --shared norm.cu"]
    assert figures.proof_missing is not None
    assert figures.proof_missing["deep_gemm"] == ["gemm.a"]


def test_the_published_deepgemm_cache_is_not_written(tmp_path: Path):
    place = Place(tmp_path)
    prove(place)
    assert list((place.places.warm_cache / "cache").iterdir()) == []


def test_a_start_that_does_not_answer_is_no_proof(tmp_path: Path):
    place = Place(tmp_path)
    place.ask()
    publish_kernel(place)
    _, faults = prove(place, "--crash")
    assert len(faults) == 1
    assert "the weights are lost" in faults[0]
