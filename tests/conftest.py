"""Shared by all tests: where GPU tests are skipped, and how a whole run is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

# One worker for each core runs tests; more threads in each, and in what it starts, would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

PROJECT = Path(__file__).parents[1]
TINY = PROJECT / "tests" / "models" / "tiny"
# A model of two layers, M from 1 to 16: about ten kernels, and every kind of problem.
SMALL_RECIPE = (
    "model.name=tiny",
    f"model.hf_config={TINY}",
    "parallel=single",
    "server.fast_warmup=true",
    "server.chunked_prefill_size=16",
    "server.moe_runner_backend=deep_gemm",
    "server.cuda_graph_max_bs=8",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_gpu = [item for item in items if item.get_closest_marker("cuda")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        skip = pytest.mark.skip(reason="no CUDA GPU on this machine; run `pytest -m cuda` on one")
        for item in on_gpu:
            item.add_marker(skip)


@dataclass(frozen=True)
class Workplace:
    """A folder of its own for runs: output, store and run folders all lie in it."""

    folder: Path

    @property
    def output(self) -> Path:
        return self.folder / "out"

    @property
    def entries(self) -> list[Path]:
        """Published kernels."""
        return sorted((self.output / "deep_gemm" / "cache").glob("*"))

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.output / "report.json").read_text())

    def command(self, *overrides: str) -> list[str]:
        places = (f"output.dir={self.output}", f"store.dir={self.folder / 'store'}")
        return [sys.executable, str(PROJECT / "run.py"), *SMALL_RECIPE, *places, *overrides]

    def start(self, *overrides: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a run without waiting for it."""
        return subprocess.Popen(
            self.command(*overrides),
            cwd=self.folder,
            env={**os.environ, **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *overrides: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run to the end."""
        child = self.start(*overrides, env=env)
        stdout, stderr = child.communicate(timeout=600)
        return subprocess.CompletedProcess(child.args, child.returncode, stdout, stderr)


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


@pytest.fixture(scope="session")
def sglang_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Python that has SGLang: PREHEAT_SGLANG_PYTHON, or one made from requirements-sglang.txt (11 GB on disk)."""
    if chosen := os.environ.get("PREHEAT_SGLANG_PYTHON"):
        yield chosen
        return
    folder = tmp_path_factory.mktemp("sglang")
    python = folder / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    requirements = str(PROJECT / "requirements-sglang.txt")
    install = [str(python), "-m", "pip", "install", "--quiet", "-r", requirements]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode != 0:
        shutil.rmtree(folder)
        pytest.fail(f"SGLang cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    yield str(python)
    shutil.rmtree(folder)
