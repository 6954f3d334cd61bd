"""env.sh as bash reads it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from pipeline.export.env_script import env_script
from pipeline.recipe import Recipe
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import server, target, tiny


def recipe_for(server_name: str) -> Recipe:
    return Recipe(model=tiny(), parallel=Parallel(name="single"), server=server(server_name), target=target())


def write_script(output: Path, server_name: str = "sglang") -> str:
    recipe = recipe_for(server_name)
    recipe.output.dir = str(output)
    text = env_script(recipe, recipe.places)
    (output / "env.sh").write_text(text)
    return text


def variables(output: Path, environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a child of a shell that sourced the script sees."""
    path = {"PATH": "/usr/bin:/bin"}
    command = ["bash", "-c", f'source "{output}/env.sh" && env -0']
    child = subprocess.run(command, env=path | dict(environment or {}), capture_output=True, text=True, check=True)
    entries = [entry.partition("=") for entry in child.stdout.split("\0") if entry]
    # What bash itself sets is no part of the script.
    return {name: value for name, _, value in entries if name not in ("PATH", "PWD", "SHLVL", "_", "OLDPWD")}


@pytest.fixture
def output(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("server_name", "cache_variable", "switch"),
    [
        ("sglang", "SGLANG_DG_CACHE_DIR", {"SGLANG_JIT_DEEPGEMM_PRECOMPILE": "0"}),
        ("vllm", "DG_JIT_CACHE_DIR", {"VLLM_DEEP_GEMM_WARMUP": "skip"}),
    ],
)
def test_deepgemms_cache_alone_needs_its_folder_and_no_sweep(
    output: Path, server_name: str, cache_variable: str, switch: dict[str, str]
):
    write_script(output, server_name)
    assert variables(output) == {cache_variable: str(output / "deep_gemm")} | switch


def test_the_first_lines_say_what_the_cache_is_for(output: Path):
    lines = write_script(output).splitlines()
    assert lines[0] == "# Warm cache for tiny (single) on NVIDIA H200, made for sglang 0.5.23."
    assert lines[1].startswith("# Source it from bash")


def test_a_servers_own_caches_are_named_where_they_are(output: Path):
    (output / "sglang").mkdir()
    write_script(output)
    expected = {
        "SGLANG_CACHE_DIR": str(output / "sglang"),
        "SGLANG_JIT_CACHE_DIR": str(output / "sglang" / "jit"),
        "FLASHINFER_USE_CUDA_NORM": "1",
    }
    assert expected.items() <= variables(output).items()


def test_flashinfers_modules_go_before_the_callers_python_path(output: Path):
    (output / "python").mkdir()
    write_script(output)
    assert variables(output)["PYTHONPATH"] == str(output / "python")
    assert variables(output, {"PYTHONPATH": "/mine:/too"})["PYTHONPATH"] == f"{output / 'python'}:/mine:/too"


def test_the_store_of_tactics_is_named_and_a_file_of_them_is_not(output: Path):
    (output / "autotune").mkdir()
    (output / "autotune" / "tactics.json").write_text("{}")
    write_script(output)
    assert "FLASHINFER_AUTOTUNE_CACHE_DIR" not in variables(output)
    (output / "autotune" / "v2").mkdir()
    write_script(output)
    assert variables(output)["FLASHINFER_AUTOTUNE_CACHE_DIR"] == str(output / "autotune")


def test_every_path_follows_the_folder_even_into_one_with_spaces(output: Path):
    for name in ("sglang", "python", "autotune/v2"):
        (output / name).mkdir(parents=True)
    text = write_script(output)
    assert str(output) not in text
    before = variables(output)
    moved = output.with_name("moved here")
    output.rename(moved)
    after = variables(moved)
    assert after == {name: value.replace(str(output), str(moved)) for name, value in before.items()}
    assert after != before
