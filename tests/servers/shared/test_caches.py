from __future__ import annotations

from pathlib import Path

from pipeline.servers.shared.caches import Caches, is_covered

CACHES = Caches(
    folder="fake",
    patterns={"triton": "triton/*/*.cubin", "modules": "modules/*/*.so"},
    variables={"FAKE_CACHE_DIR": ".", "FAKE_TRITON_DIR": "triton"},
)


def test_an_entry_is_the_folder_of_a_file_that_matches(tmp_path: Path):
    for name in ("triton/AB/k.cubin", "triton/AB/k.json", "triton/CD/k.json", "modules/rope/rope.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert CACHES.entries(tmp_path) == {"triton": {"triton/AB"}, "modules": {"modules/rope"}}


def test_a_folder_that_is_not_there_has_no_entries(tmp_path: Path):
    assert CACHES.entries(tmp_path / "nowhere") == {"triton": set(), "modules": set()}


def test_every_variable_points_below_the_folder():
    assert CACHES.environment(Path("/warm/fake")) == {
        "FAKE_CACHE_DIR": "/warm/fake",
        "FAKE_TRITON_DIR": "/warm/fake/triton",
    }


def test_an_answer_is_covered_while_none_of_its_entries_is_gone():
    present = {"triton": {"triton/AB"}, "flashinfer": {"norm", "gemm"}}
    assert is_covered({"triton": ["triton/AB"], "flashinfer": ["norm"]}, present)
    assert is_covered({}, present)
    assert not is_covered({"triton": ["triton/AB", "triton/CD"]}, present)
