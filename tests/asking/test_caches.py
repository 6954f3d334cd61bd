from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pipeline.asking.caches import FOLDER, cache_variables, entries, is_covered, write_flashinfer_provider
from tests.asking.places import installed

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
    found = entries(tmp_path)
    assert found["flashinfer"] == {f"{OPS}/norm"}
    assert found["triton"] == {"triton/AB"}
    assert found["sglang_jit"] == {"jit/sm90a/rope/build-1/deps-2"}
    assert found["tilelang"] == {"tilelang/0.1/linux/kernels/EF"}
    assert found["inductor"] == {"inductor/fxgraph/ab/key"}
    assert is_covered({"triton": ["triton/AB"], "flashinfer": [f"{OPS}/norm"]}, found)
    assert not is_covered({"triton": ["triton/AB", "triton/CD"]}, found)


def test_flashinfer_would_find_its_modules_through_the_provider_wherever_the_folder_lies(tmp_path: Path):
    baked = tmp_path / "baked"
    fill(baked / FOLDER, f"{OPS}/norm/norm.so", f"{OPS}/gemm/gemm.so")
    path = write_flashinfer_provider(baked, installed(), "sm90a")
    assert path is not None
    moved = tmp_path / "moved"
    baked.rename(moved)
    code = (
        "import json, flashinfer_jit_cache as shim\n"
        "(p,) = shim.get_jit_cache_providers()\n"
        "print(json.dumps([shim.__version__, p.version, str(p.jit_cache_dir), p.modules, p.cuda_architectures]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": str(moved / path.name)}, capture_output=True, text=True)
    assert json.loads(done.stdout) == [
        "0.7.2",
        "0.7.2",
        str(moved / FOLDER / OPS),
        ["gemm", "norm"],
        ["sm90a"],
    ]


def test_there_is_no_provider_without_modules(tmp_path: Path):
    assert write_flashinfer_provider(tmp_path, installed(), "sm90a") is None
    assert not (tmp_path / "python").exists()


def test_every_cache_is_pointed_at():
    assert cache_variables(Path("/warm/sglang")) == {
        "SGLANG_CACHE_DIR": "/warm/sglang",
        "SGLANG_JIT_CACHE_DIR": "/warm/sglang/jit",
    }
