"""The installed SGLang itself, asked for DeepSeek-V3 in three layouts and started again without compilers.

The fixture sglang_python (tests/conftest.py) installs it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import PROJECT

# One worker runs them all: they share one install and, in test_server.py, one output.
pytestmark = [pytest.mark.server, pytest.mark.xdist_group("server")]
LAYOUTS = ("tp8", "pp4", "dp8_ep8")
GIB = 1 << 30


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One output for all layouts, so that a module is built once."""
    return tmp_path_factory.mktemp("served")


def run(place: Path, python: str, *overrides: str, model: str = "deepseek") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROJECT / "run.py"), f"model={model}", "server.moe_runner_backend=deep_gemm"]
    command += [f"server.python={python}", f"output.dir={place / 'out'}", f"store.dir={place / 'store'}", *overrides]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=2400)


def report(place: Path) -> dict[str, Any]:
    return json.loads((place / "out" / "report.json").read_text())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rules_and_server_name_the_same_and_nothing_is_compiled_again(place: Path, sglang_python: str, layout: str):
    done = run(place, sglang_python, f"parallel={layout}", "discovery=both")
    assert done.returncode == 0, done.stdout + done.stderr
    contents = report(place)
    server = contents["server"]
    sweep = contents["sweep"]
    assert (server["rules_only"], server["server_only"]) == ([], [])
    assert (sweep["rules_only_keys"], sweep["server_only_keys"]) == ([], [])
    assert server["problems"] == sweep["problems"] >= 10
    assert len(server["starts"]) == (8 if layout == "pp4" else 2)
    assert all(server["caches"][name]["asked"] > 0 for name in ("flashinfer", "triton", "sglang_jit"))
    assert server["tokens_answered"] == server["proof_tokens_answered"] > 1000
    assert server["proof_compiler_calls"] == []
    assert not any(server["proof_missing"].values())
    assert server["peak_bytes"] < 6 * GIB


@pytest.mark.parametrize(
    ("model", "flags"), [("deepseek", ("parallel=tp8", "server.mtp=true")), ("qwen36_27b", ("parallel=tp4",))]
)
def test_drafts_and_gated_delta_nets_are_served_too(
    place: Path, sglang_python: str, model: str, flags: tuple[str, ...]
):
    done = run(place, sglang_python, *flags, "discovery=both", "server.disable_cuda_graph=true", model=model)
    assert done.returncode == 0, done.stdout + done.stderr
    server = report(place)["server"]
    assert (server["rules_only"], server["server_only"]) == ([], [])
    assert server["tokens_answered"] == server["proof_tokens_answered"] > 50
    assert not any(server["proof_missing"].values())
    # The delta rule exists in CuTe-DSL alone, which keeps nothing on disk.
    assert any("CPDeltaRulePrefill" in kernel for kernel in server["cute_dsl"]) == (model == "qwen36_27b")


def test_a_kernel_that_lacks_is_found_by_starting_the_server(place: Path, sglang_python: str):
    kernels = sorted((place / "out" / "sglang" / "triton").glob("*/*.cubin"))
    assert kernels
    for kernel in kernels:
        shutil.rmtree(kernel.parent, ignore_errors=True)
    flags = ("parallel=tp8", "discovery=server", "server.disable_cuda_graph=true", "mode=verify")
    done = run(place, sglang_python, *flags)
    assert done.returncode == 5, done.stdout + done.stderr
    assert "a hidden compiler was called: ptxas" in done.stderr


def test_arguments_that_the_server_does_not_know_are_refused_in_its_words(place: Path, sglang_python: str):
    done = run(place, sglang_python, "parallel=tp8", "discovery=server", "server.args='--bogus 1'")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "error: server.args: unrecognized arguments: --bogus 1" in done.stderr
