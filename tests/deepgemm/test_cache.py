from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.deepgemm.cache import PublishedKeys, cache_faults, publish
from pipeline.deepgemm.toolkit import Toolkit
from tests.fake_toolkit import cubin

TOOLKIT = Toolkit(Path("/cuda/bin/nvcc"), Path("/cuda"), "release 13.0", "a test")


def stub_entry(cache: Path, key: str, *, is_newer_jit: bool = True) -> None:
    """What discovery leaves for one kernel: with meta.json and .committed in the newer JIT generation."""
    entry = cache / "cache" / key
    entry.mkdir(parents=True)
    (entry / "kernel.cu").write_text("code")
    (entry / "kernel.cubin").write_text("PREHEAT-STUB\n")
    if is_newer_jit:
        command = "/scratch/nvcc /scratch/tmp/kernel.cu --cubin --output-file /scratch/tmp/kernel.cubin -O3"
        (entry / "meta.json").write_text(json.dumps({"command": command, "compiler_info": {"path": "/scratch/nvcc"}}))
        (entry / ".committed").write_text("")


@pytest.fixture
def built(tmp_path: Path) -> Path:
    path = tmp_path / "built.cubin"
    path.write_bytes(cubin(90))
    return path


@pytest.mark.parametrize("is_newer_jit", [True, False])
def test_an_entry_of_either_generation_is_published_whole(tmp_path: Path, built: Path, is_newer_jit: bool):
    stub_entry(tmp_path / "stubs", "gemm.1", is_newer_jit=is_newer_jit)
    published = publish(tmp_path / "stubs", {"gemm.1": built}, tmp_path / "warm", toolkit=TOOLKIT, sm=90)
    assert published.added == ["gemm.1"]
    assert cache_faults(tmp_path / "warm", 90) == (1, [])
    assert [path.name for path in (tmp_path / "warm").iterdir()] == ["cache"], "staging is gone"


def test_the_record_names_the_real_compiler_and_no_working_folder(tmp_path: Path, built: Path):
    stub_entry(tmp_path / "stubs", "gemm.1")
    publish(tmp_path / "stubs", {"gemm.1": built}, tmp_path / "warm", toolkit=TOOLKIT, sm=90)
    meta = json.loads((tmp_path / "warm" / "cache" / "gemm.1" / "meta.json").read_text())
    assert meta["command"] == "/cuda/bin/nvcc kernel.cu --cubin --output-file kernel.cubin -O3"
    assert meta["compiler_info"]["path"] == "/cuda/bin/nvcc"


def test_a_good_entry_is_never_touched_and_a_bad_one_is_replaced(tmp_path: Path, built: Path):
    for key in ("good", "bad"):
        stub_entry(tmp_path / "stubs", key)
    both = {"good": built, "bad": built}
    publish(tmp_path / "stubs", both, tmp_path / "warm", toolkit=TOOLKIT, sm=90)
    inode = (tmp_path / "warm" / "cache" / "good" / "kernel.cubin").stat().st_ino
    (tmp_path / "warm" / "cache" / "bad" / "kernel.cubin").write_bytes(cubin(90)[:40])
    published = publish(tmp_path / "stubs", both, tmp_path / "warm", toolkit=TOOLKIT, sm=90)
    assert (published.kept, published.replaced, published.added) == (["good"], ["bad"], [])
    assert (tmp_path / "warm" / "cache" / "good" / "kernel.cubin").stat().st_ino == inode
    assert cache_faults(tmp_path / "warm", 90) == (2, [])


def test_a_missing_marker_is_a_fault_because_the_server_would_ignore_the_entry(tmp_path: Path, built: Path):
    stub_entry(tmp_path / "stubs", "gemm.1")
    publish(tmp_path / "stubs", {"gemm.1": built}, tmp_path / "warm", toolkit=TOOLKIT, sm=90)
    (tmp_path / "warm" / "cache" / "gemm.1" / ".committed").unlink()
    _, faults = cache_faults(tmp_path / "warm", 90)
    assert "belong together" in faults[0]


def test_a_servers_own_lock_folder_is_no_stranger(tmp_path: Path, built: Path):
    stub_entry(tmp_path / "stubs", "gemm.1")
    publish(tmp_path / "stubs", {"gemm.1": built}, tmp_path / "warm", toolkit=TOOLKIT, sm=90)
    (tmp_path / "warm" / "locks").mkdir()
    (tmp_path / "warm" / "left_over").mkdir()
    _, faults = cache_faults(tmp_path / "warm", 90)
    assert len(faults) == 1
    assert "left_over" in faults[0]


def test_a_key_that_is_published_twice_counts_as_it_did_first():
    published = PublishedKeys(added=["new"], kept=["good"], replaced=["bad"])
    published.extend(PublishedKeys(added=["other"], kept=["new", "bad", "known"]))
    assert published == PublishedKeys(added=["new", "other"], kept=["good", "known"], replaced=["bad"])
