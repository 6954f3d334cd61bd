"""manifest.json: every file with size and hash, everything that enters a kernel key, and what is covered."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.deepgemm.memo import distribution_version, package_folder
from pipeline.deepgemm.store import tree_digest
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.places import Places
from pipeline.recipe import Recipe
from pipeline.servers.registry import SERVERS
from pipeline.servers.shared.flashinfer_provider import PROVIDER
from pipeline.servers.shared.problems import Problem

PACKAGES = ("torch", "flashinfer-python", "sgl-deep-gemm", "hydra-core", "omegaconf", "networkx")


def manifest(
    recipe: Recipe, places: Places, toolkit: Toolkit, problems: Sequence[Problem], keys_of_problem: Mapping[str, int]
) -> dict[str, Any]:
    """The whole file; `keys_of_problem`: the number of kernel keys by the problem's name."""
    target = recipe.target
    return {
        "schema": "preheat-manifest/1",
        "recipe": recipe.name,
        "server": {"name": recipe.server.name, "version": recipe.server.version},
        "target": {name: getattr(target, name) for name in ("name", "product", "compute_capability", "num_sms")},
        "enters_the_key": _enters_the_key(recipe, toolkit),
        "versions": {"python": platform.python_version()} | {name: distribution_version(name) for name in PACKAGES},
        "problems": [_problem(problem, keys_of_problem.get(problem.name)) for problem in problems],
        "files": {str(path.relative_to(places.output)): _size_and_hash(path) for path in _files(recipe, places)},
    }


def _enters_the_key(recipe: Recipe, toolkit: Toolkit) -> dict[str, Any]:
    home = recipe.toolkit.deep_gemm
    return {
        "nvcc_version_text": toolkit.version_text,
        "nvcc_source": toolkit.source,
        "deep_gemm": "the installed one" if home is None else home,
        "deep_gemm_headers_sha256": tree_digest(str(package_folder(home=home) / "include")),
        "num_sms": recipe.target.num_sms,
    }


def _problem(problem: Problem, num_keys: int | None) -> dict[str, Any]:
    return {
        "kernel": problem.kernel.value,
        "n": problem.n,
        "k": problem.k,
        "groups": problem.groups,
        "m": problem.m.to_json(),
        "keys": num_keys,
    }


def _size_and_hash(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _files(recipe: Recipe, places: Places) -> Iterator[Path]:
    yield places.output / "env.sh"
    yield places.output / "recipe.yaml"
    askable = SERVERS[recipe.server.name].askable
    if askable is not None:
        yield from _files_under(places.output / askable.caches.folder)
    yield from _files_under(places.output / PROVIDER)
    yield from _files_under(places.tactics, "*.json")
    yield from _files_under(places.warm_cache / "cache")


def _files_under(folder: Path, pattern: str = "*") -> list[Path]:
    return sorted(path for path in folder.rglob(pattern) if path.is_file())
