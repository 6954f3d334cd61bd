"""Leave behind what a server needs: env.sh, and a manifest that says what is covered and by which versions."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.deepgemm.memo import distribution_version, package_folder
from pipeline.deepgemm.store import tree_digest
from pipeline.engine.context import View
from pipeline.engine.report import to_json, write_atomically
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.recipe import Mode, Recipe
from pipeline.slots import BAKED, PROOF, RECIPE, RECIPE_YAML, WORKLOAD, Baked
from pipeline.workload.problems import Problem

PACKAGES = ("torch", "flashinfer-python", "sgl-deep-gemm", "hydra-core", "omegaconf", "networkx")
# Both servers print DeepGEMM's own variables; SGLang overwrites DG_JIT_CACHE_DIR with its own at import.
SERVER_VARIABLES = {"sglang": ("SGLANG_DG_CACHE_DIR",), "vllm": ("DG_JIT_CACHE_DIR",)}


@dataclass(kw_only=True)
class Export(Stage):
    """Every file by rename; an existing output stays valid at every moment."""

    reads = (RECIPE, RECIPE_YAML, WORKLOAD, BAKED, PROOF)
    writes = ()
    resource = Resource.CORES

    def run(self, ctx: View) -> Result | Skipped:
        """Writes manifest.json and env.sh into the output directory."""
        recipe, baked = ctx[RECIPE], ctx[BAKED]
        if recipe.mode is Mode.verify:
            return Skipped("mode=verify writes nothing but the report")
        folder = Path(recipe.output.dir).absolute()
        write_atomically(folder / "env.sh", env_script(recipe))
        write_atomically(folder / "recipe.yaml", ctx[RECIPE_YAML])
        keys = ctx[PROOF].keys_of_problem if ctx[WORKLOAD].problems else {}
        contents = manifest(recipe, baked, folder, ctx[WORKLOAD].problems, keys)
        write_atomically(folder / "manifest.json", to_json(contents))
        return Result(f"{len(contents['files'])} files in {folder}; source {folder}/env.sh before the server")


def env_script(recipe: Recipe) -> str:
    """What to export before starting the recipe's server, resolved where the script lies."""
    lines = [
        f"# Warm cache for {recipe.model.name} ({recipe.parallel.name}) on {recipe.target.product}, made for "
        f"{recipe.server.name} {recipe.server.version}.",
        "# Source it from bash; the folder may be moved or copied into an image.",
        'PREHEAT_WARM_CACHE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
    ]
    lines += [f'export {name}="$PREHEAT_WARM_CACHE/deep_gemm"' for name in SERVER_VARIABLES[recipe.server.name]]
    if recipe.server.name == "sglang":
        lines += [
            "# The kernels are there already: do not run the server's own sweep, load each at its first use.",
            "export SGLANG_JIT_DEEPGEMM_PRECOMPILE=0",
        ]
    return "\n".join(lines) + "\n"


def manifest(
    recipe: Recipe, baked: Baked, folder: Path, problems: tuple[Problem, ...], keys: dict[str, int]
) -> dict[str, Any]:
    """Every file with size and hash, everything that enters a kernel key, and the problems and M covered."""
    files = [folder / "env.sh", folder / "recipe.yaml"]
    files += sorted(path for path in (baked.warm_cache / "cache").rglob("*") if path.is_file())
    return {
        "schema": "preheat-manifest/1",
        "recipe": recipe.name,
        "server": {"name": recipe.server.name, "version": recipe.server.version},
        "target": {name: getattr(recipe.target, name) for name in ("name", "product", "compute_capability", "num_sms")},
        "enters_the_key": {
            "nvcc_version_text": baked.toolkit.version_text,
            "nvcc_source": baked.toolkit.source,
            "deep_gemm_headers_sha256": tree_digest(str(package_folder() / "include")),
            "num_sms": recipe.target.num_sms,
        },
        "versions": {"python": platform.python_version()} | {name: distribution_version(name) for name in PACKAGES},
        "problems": [
            {
                "kernel": problem.kernel.value,
                "n": problem.n,
                "k": problem.k,
                "groups": problem.groups,
                "m": problem.m.to_json(),
                "keys": keys.get(problem.name),
            }
            for problem in problems
        ],
        "files": {
            str(path.relative_to(folder)): {
                "bytes": path.stat().st_size,
                "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            }
            for path in files
        },
    }
