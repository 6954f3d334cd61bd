from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.servers.shared.hidden_compilers import COMPILERS, hide_compilers
from tests.servers.shared.places import Place, installed


def test_every_compiler_tells_its_version_and_refuses_to_compile(tmp_path: Path):
    toolkit = Place(tmp_path).toolkit
    hidden = hide_compilers(tmp_path / "hidden", installed(), toolkit)
    environment = {**os.environ, **hidden.environment()}
    version = subprocess.run(["nvcc", "--version"], env=environment, capture_output=True, text=True)
    assert version.stdout == toolkit.version_text
    assert hidden.calls == [], "asking for the version compiles nothing"
    for name in COMPILERS:
        done = subprocess.run([name, "-o", "x", "kernel.cu"], env=environment, capture_output=True, text=True)
        assert done.returncode != 0
        assert "is hidden" in done.stderr
    assert hidden.calls == [f"{name} -o x kernel.cu" for name in COMPILERS]


@pytest.mark.parametrize(("release", "folder"), [("13.0", "bin"), ("12.9", "triton")])
def test_triton_s_compilers_tell_the_versions_that_triton_would_see(tmp_path: Path, release: str, folder: str):
    """FlashInfer takes the ptxas on PATH for sm_100 from CUDA 13 on; for sm_90 Triton's own stays."""
    bins = tmp_path / "site" / "triton" / "backends" / "nvidia" / "bin"
    bins.mkdir(parents=True)
    for name in ("ptxas", "ptxas-blackwell"):
        (bins / name).write_text(f"#!/bin/sh\necho {name} of triton\n")
        (bins / name).chmod(0o755)
    toolkit = replace(Place(tmp_path).toolkit, version_text=f"release {release}\n")
    ptxas = toolkit.nvcc.parent / "ptxas"
    ptxas.write_text("#!/bin/sh\necho ptxas of the toolkit\n")
    ptxas.chmod(0o755)
    server = replace(installed(), python=tmp_path / "server" / "bin" / "python", site_packages=tmp_path / "site")
    variables = hide_compilers(tmp_path / "hidden", server, toolkit).environment()
    versions = {
        name: subprocess.run([variables[name], "--version"], capture_output=True, text=True).stdout.strip()
        for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
    }
    blackwell = "ptxas of the toolkit" if folder == "bin" else "ptxas-blackwell of triton"
    assert versions == {"TRITON_PTXAS_PATH": "ptxas of triton", "TRITON_PTXAS_BLACKWELL_PATH": blackwell}
