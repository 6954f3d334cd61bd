from __future__ import annotations

from pathlib import Path

from pipeline.servers.sglang.caches import CACHES
from pipeline.servers.shared.caches import is_covered

OPS = ".cache/flashinfer/0.7.2/90a/cached_ops"


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_entries_are_the_folders_that_hold_a_finished_product(tmp_path: Path):
    fill(tmp_path, f"{OPS}/norm/norm.so", f"{OPS}/gemm/build.ninja", "triton/AB/k.cubin", "triton/CD/k.json")
    fill(tmp_path, "tilelang/0.1/linux/kernels/EF/executable.so", "tilelang/0.1/linux/.staging/EF/executable.so")
    fill(tmp_path, "inductor/fxgraph/ab/key/graph", "inductor/ab/cab.py")
    fill(tmp_path, "jit/sm90a/rope/build-1/deps-2/rope.so", "jit/sm90a/rope/build-1/.staging-3/rope.o")
    entries = CACHES.entries(tmp_path)
    assert entries["flashinfer"] == {f"{OPS}/norm"}
    assert entries["triton"] == {"triton/AB"}
    assert entries["sglang_jit"] == {"jit/sm90a/rope/build-1/deps-2"}
    assert entries["tilelang"] == {"tilelang/0.1/linux/kernels/EF"}
    assert entries["inductor"] == {"inductor/fxgraph/ab/key"}
    assert is_covered({"triton": ["triton/AB"], "flashinfer": [f"{OPS}/norm"]}, entries)
    assert not is_covered({"triton": ["triton/AB", "triton/CD"]}, entries)


def test_every_cache_is_pointed_at():
    assert CACHES.folder == "sglang"
    assert CACHES.environment(Path("/warm/sglang")) == {
        "SGLANG_CACHE_DIR": "/warm/sglang",
        "SGLANG_JIT_CACHE_DIR": "/warm/sglang/jit",
    }
