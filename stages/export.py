"""Leave behind what a server needs: env.sh, and a manifest that says what is covered and by which versions."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.asking.caches import FOLDER, INSTEAD_OF_CUTE, PROVIDER, cache_variables
from pipeline.deepgemm.classic_keys import Compiler, compiler_of, include_folder, is_classic, relocate
from pipeline.deepgemm.compiler import Source
from pipeline.deepgemm.memo import distribution_version, package_folder
from pipeline.deepgemm.store import tree_digest
from pipeline.engine.context import View
from pipeline.engine.errors import StageError
from pipeline.engine.report import to_json, write_atomically
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.recipe import Mode, Recipe
from pipeline.slots import BAKED, PROOF, RECIPE, RECIPE_YAML, Baked
from pipeline.workload.problems import Problem

PACKAGES = ("torch", "flashinfer-python", "sgl-deep-gemm", "hydra-core", "omegaconf", "networkx")
TACTICS_VARIABLE = "FLASHINFER_AUTOTUNE_CACHE_DIR"
# (where the server looks, what keeps it from running its own sweep). SGLang overwrites DG_JIT_CACHE_DIR at import.
SERVER_VARIABLES = {
    "sglang": ("SGLANG_DG_CACHE_DIR", "SGLANG_JIT_DEEPGEMM_PRECOMPILE=0"),
    "vllm": ("DG_JIT_CACHE_DIR", "VLLM_DEEP_GEMM_WARMUP=skip"),
}


@dataclass(kw_only=True)
class Export(Stage):
    """Every file by rename; an existing output stays valid at every moment."""

    relocate_to: str | None = None
    """Where deep_gemm will be installed on the serving machine (the package or its include folder); None means here.

    Only the classic JIT (0.1.x) needs it: its keys hold the include path.
    """

    reads = (RECIPE, RECIPE_YAML, BAKED, PROOF)
    writes = ()
    resource = Resource.CORES

    def run(self, ctx: View) -> Result | Skipped:
        """Writes manifest.json and env.sh into the output directory."""
        recipe = ctx[RECIPE]
        baked = ctx[BAKED]
        if recipe.mode is Mode.verify:
            return Skipped("mode=verify writes nothing but the report")
        folder = Path(recipe.output.dir).absolute()
        moved = self._relocate(ctx) if self.relocate_to else {}
        write_atomically(folder / "env.sh", env_script(recipe))
        write_atomically(folder / "recipe.yaml", ctx[RECIPE_YAML])
        keys = ctx[PROOF].keys_of_problem if baked.problems else {}
        contents = manifest(recipe, baked, folder, baked.problems, keys)
        if moved:
            contents["enters_the_key"]["relocated_to"] = str(include_folder(Path(self.relocate_to or "")))
        write_atomically(folder / "manifest.json", to_json(contents))
        note = f", {len(moved)} kernels renamed for {self.relocate_to}" if moved else ""
        return Result(f"{len(contents['files'])} files in {folder}; source {folder}/env.sh before the server{note}")

    def _relocate(self, ctx: View) -> dict[str, str]:
        """Old key to new; StageError when the keys hold no path, or are not what this recipe's compiler gives."""
        baked = ctx[BAKED]
        target = include_folder(Path(self.relocate_to or ""))
        compiler = relocation(baked.sources, baked.toolkit.release)
        if compiler is None:
            raise StageError(
                f"export.relocate_to={self.relocate_to}: this DeepGEMM leaves paths out of its keys, so nothing needs "
                "to be renamed; remove the option"
            )
        return relocate(baked.warm_cache, compiler, target)


def relocation(sources: list[Source], release: tuple[int, int]) -> Compiler | None:
    """The compiler record of a classic cache, None where keys hold no path."""
    if not sources or not all(is_classic(source.key) for source in sources):
        return None
    return compiler_of(sources[0].arguments, release)


def env_script(recipe: Recipe) -> str:
    """What to export before starting the recipe's server, resolved where the script lies."""
    lines = [
        f"# Warm cache for {recipe.model.name} ({recipe.parallel.name}) on {recipe.target.product}, made for "
        f"{recipe.server.name} {recipe.server.version}.",
        "# Source it from bash; the folder may be moved or copied into an image.",
        'PREHEAT_WARM_CACHE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
    ]
    cache_variable, no_sweep = SERVER_VARIABLES[recipe.server.name]
    lines += [
        f'export {cache_variable}="$PREHEAT_WARM_CACHE/deep_gemm"',
        "# The kernels are there already: do not run the server's own sweep, load each at its first use.",
        f"export {no_sweep}",
    ]
    output = Path(recipe.output.dir)
    if (output / FOLDER).is_dir():
        variables = cache_variables(Path("$PREHEAT_WARM_CACHE") / FOLDER)
        lines += [f'export {name}="{value}"' for name, value in variables.items()]
        lines.append("# CuTe-DSL keeps no compiled kernel on disk; FlashInfer's CUDA norms are in the cache.")
        lines += [f"export {name}={value}" for name, value in INSTEAD_OF_CUTE.items()]
    if (output / PROVIDER).is_dir():
        lines.append("# FlashInfer's modules load from here without ninja and nvcc.")
        lines.append(f'export PYTHONPATH="$PREHEAT_WARM_CACHE/{PROVIDER}${{PYTHONPATH:+:$PYTHONPATH}}"')
    if (output / "autotune" / "v2").is_dir():
        lines.append(f'export {TACTICS_VARIABLE}="$PREHEAT_WARM_CACHE/autotune"')
    return "\n".join(lines) + "\n"


def manifest(
    recipe: Recipe, baked: Baked, folder: Path, problems: tuple[Problem, ...], keys: dict[str, int]
) -> dict[str, Any]:
    """Every file with size and hash, everything that enters a kernel key, and the problems and M covered."""
    files = [folder / "env.sh", folder / "recipe.yaml"]
    files += [path for name in (FOLDER, PROVIDER) for path in sorted((folder / name).rglob("*")) if path.is_file()]
    files += sorted(path for path in (folder / "autotune").rglob("*.json") if path.is_file())
    files += sorted(path for path in (baked.warm_cache / "cache").rglob("*") if path.is_file())
    return {
        "schema": "preheat-manifest/1",
        "recipe": recipe.name,
        "server": {"name": recipe.server.name, "version": recipe.server.version},
        "target": {name: getattr(recipe.target, name) for name in ("name", "product", "compute_capability", "num_sms")},
        "enters_the_key": {
            "nvcc_version_text": baked.toolkit.version_text,
            "nvcc_source": baked.toolkit.source,
            "deep_gemm": "the installed one" if recipe.toolkit.deep_gemm is None else recipe.toolkit.deep_gemm,
            "deep_gemm_headers_sha256": tree_digest(str(package_folder(home=recipe.toolkit.deep_gemm) / "include")),
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
