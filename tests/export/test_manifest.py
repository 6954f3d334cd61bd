from __future__ import annotations

import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import pytest

from pipeline.deepgemm.memo import package_folder
from pipeline.deepgemm.store import tree_digest
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.errors import HostError
from pipeline.export.manifest import manifest
from pipeline.recipe import Recipe, ToolkitChoice
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import server, target, tiny

TOOLKIT = Toolkit(Path("/cuda/bin/nvcc"), Path("/cuda"), "release 13.0", "CUDA_HOME")
PROBLEM = Problem(
    kernel=Kernel.MASKED,
    n=512,
    k=256,
    groups=4,
    m=MList.up_to(8),
    linears=("linear",),
    layers=(0,),
    ranks=(0,),
    options=(("num_sms", 72),),
)
FILES = (
    "env.sh",
    "recipe.yaml",
    "sglang/jit/a/b/c/d/module.so",
    "python/flashinfer_jit_cache/modules.json",
    "autotune/tactics.json",
    "autotune/v2/0123/entries/1.json",
    "deep_gemm/cache/gemm.a/kernel.cubin",
    "deep_gemm/cache/gemm.a/.committed",
)
NO_PART_OF_IT = ("report.json", "autotune/v2/0123/lock", "deep_gemm/locks/gemm.a", "vllm/cache.bin")


def recipe_of(output: Path, *, server_name: str = "sglang", deep_gemm: str | None = None) -> Recipe:
    recipe = Recipe(
        model=tiny(),
        parallel=Parallel(name="single"),
        server=server(server_name),
        target=target("h20"),
        toolkit=ToolkitChoice(deep_gemm=deep_gemm),
    )
    recipe.output.dir = str(output)
    return recipe


def manifest_of(recipe: Recipe, keys_of_problem: dict[str, int] | None = None) -> dict[str, Any]:
    return manifest(recipe, recipe.places, TOOLKIT, [PROBLEM], keys_of_problem or {})


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """An output folder with a file of every kind, each with its own name as content."""
    for name in (*FILES, *NO_PART_OF_IT):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_every_file_that_a_server_reads_is_listed_with_size_and_hash(output: Path):
    files = manifest_of(recipe_of(output))["files"]
    assert files == {name: {"bytes": len(name), "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in FILES}


def test_the_caches_of_another_server_are_no_part_of_it(output: Path):
    files = manifest_of(recipe_of(output, server_name="vllm"))["files"]
    assert set(files) == {name for name in FILES if not name.startswith("sglang/")}


def test_a_problem_is_listed_with_its_keys_and_null_where_none_were_counted(output: Path):
    expected = {"kernel": "GROUPED_GEMM_NT_F8F8BF16_MASKED", "n": 512, "k": 256, "groups": 4, "m": [[1, 9, 1]]}
    recipe = recipe_of(output)
    assert manifest_of(recipe, {PROBLEM.name: 7})["problems"] == [expected | {"keys": 7}]
    assert manifest_of(recipe, {"another problem": 7})["problems"] == [expected | {"keys": None}]


def test_recipe_server_target_and_versions_are_named(output: Path):
    contents = manifest_of(recipe_of(output))
    assert contents["schema"] == "preheat-manifest/1"
    assert contents["recipe"] == "tiny-single-sglang-h20"
    assert contents["server"] == {"name": "sglang", "version": "0.5.23"}
    assert contents["target"] == {
        "name": "h20",
        "product": "NVIDIA H20",
        "compute_capability": "9.0",
        "num_sms": 78,
    }
    assert contents["versions"]["python"] == platform.python_version()
    assert contents["versions"]["torch"]
    assert json.loads(json.dumps(contents)) == contents, "it is written as JSON"


def test_what_enters_a_kernel_key_is_named(output: Path):
    assert manifest_of(recipe_of(output))["enters_the_key"] == {
        "nvcc_version_text": "release 13.0",
        "nvcc_source": "CUDA_HOME",
        "deep_gemm": "the installed one",
        "deep_gemm_headers_sha256": tree_digest(str(package_folder() / "include")),
        "num_sms": 78,
    }


def test_the_headers_of_a_deep_gemm_that_the_recipe_names_are_the_ones_hashed(output: Path, tmp_path: Path):
    home = tmp_path / "third_party"
    include = home / "deep_gemm" / "include"
    include.mkdir(parents=True)
    (include / "gemm.cuh").write_text("header")
    (home / "deep_gemm" / "__init__.py").write_text("")
    enters = manifest_of(recipe_of(output, deep_gemm=str(home)))["enters_the_key"]
    assert enters["deep_gemm"] == str(home)
    assert enters["deep_gemm_headers_sha256"] == tree_digest(str(include))
    with pytest.raises(HostError, match="holds no package deep_gemm"):
        manifest_of(recipe_of(output, deep_gemm=str(tmp_path / "absent")))
