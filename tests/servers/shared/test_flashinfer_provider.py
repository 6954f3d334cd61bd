from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from pipeline.servers.shared.flashinfer_provider import write_flashinfer_provider

CACHES = "fake"
OPS = ".cache/flashinfer/0.7.2/90a/cached_ops"


def fill(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def write(output: Path) -> Path | None:
    return write_flashinfer_provider(output, CACHES, flashinfer_version="0.7.2", sm="sm90a")


def test_flashinfer_would_find_its_modules_through_the_provider_wherever_the_folder_lies(tmp_path: Path):
    baked = tmp_path / "baked"
    fill(baked / CACHES, f"{OPS}/norm/norm.so", f"{OPS}/gemm/gemm.so", f"{OPS}/gemm/part.so", f"{OPS}/rope/rope.o")
    path = write(baked)
    assert path is not None
    moved = tmp_path / "moved"
    baked.rename(moved)
    code = (
        "import json, flashinfer_jit_cache as shim\n"
        "(p,) = shim.get_jit_cache_providers()\n"
        "print(json.dumps([shim.__version__, p.version, str(p.jit_cache_dir), p.modules, p.cuda_architectures,\n"
        "    shim.get_jit_cache_dir()]))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env={"PYTHONPATH": str(moved / path.name)}, capture_output=True, text=True)
    assert json.loads(done.stdout) == [
        "0.7.2",
        "0.7.2",
        str(moved / CACHES / OPS),
        ["gemm", "norm"],
        ["sm90a"],
        str(moved / CACHES / OPS),
    ]


def test_there_is_no_provider_without_modules(tmp_path: Path):
    assert write(tmp_path) is None
    assert not (tmp_path / "python").exists()
