"""Discoveries made before, by everything that decides them; a second run of a recipe launches nothing twice."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from pipeline.deepgemm.discovery import STAND_IN, Discoverer, Discovery, problems_json
from pipeline.deepgemm.store import tree_digest
from pipeline.engine.errors import HostError
from pipeline.engine.scratch import scratch_folder
from pipeline.workload.problems import Problem

RESULT = "discovery.json"


@dataclass(frozen=True, slots=True)
class Remembered:
    """A discovery and the private cache it filled with stubs."""

    discovery: Discovery
    stub_cache: Path
    is_new: bool


def package_folder(name: str = "deep_gemm", home: str | None = None) -> Path:
    """Where the package is, found without importing it (deep_gemm's import wants a GPU).

    `home` is the folder that holds it, for a copy that another package brings along; None means the installed one.
    """
    if home is not None:
        folder = Path(home).absolute() / name
        if not (folder / "__init__.py").is_file():
            raise HostError(f"toolkit.deep_gemm={home} holds no package {name}; name the folder that holds it")
        return folder
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise HostError(f"{name} is not installed; pip install -r requirements.txt (sgl-deep-gemm)")
    return Path(spec.origin).parent


def distribution_version(name: str) -> str | None:
    """Version of an installed distribution, None when it is absent."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def discovery_digest(problems: Sequence[Problem], discoverer: Discoverer) -> str:
    """Everything that decides which keys a discovery finds, and the shared objects that found them."""
    child = [STAND_IN.with_name("worker.py"), *sorted(STAND_IN.with_name("launchers").glob("*.py"))]
    parts = (
        json.dumps(problems_json(problems)),
        json.dumps(discoverer.gpu.environment(), sort_keys=True),
        discoverer.toolkit.version_text,
        tree_digest(str(package_folder(home=discoverer.deep_gemm))),
        distribution_version("torch") or "",
        *(path.read_text() for path in child),
        STAND_IN.read_text(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def remembered(root: Path, digest: str, discover: Callable[[Path], Discovery]) -> Remembered:
    """The discovery of this digest; made by `discover(cache directory)` when it is not there yet."""
    folder = root / "discoveries" / digest
    if (folder / RESULT).exists():
        return Remembered(_read(folder), folder / "deep_gemm", is_new=False)
    with scratch_folder(root / "scratch", "memo-") as staging:
        made = staging / "made"
        found = discover(made / "deep_gemm")
        (made / RESULT).write_text(json.dumps(found.to_json()))
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A concurrent run may have been first; its result is the same.
        with contextlib.suppress(OSError):
            made.rename(folder)
    return Remembered(_read(folder), folder / "deep_gemm", is_new=True)


def _read(folder: Path) -> Discovery:
    return Discovery.from_json(json.loads((folder / RESULT).read_text()))
