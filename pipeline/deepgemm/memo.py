"""Discoveries of earlier runs by a hash of what decides them, so that a second run of a recipe launches nothing."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from pipeline.deepgemm.discovery import STAND_IN, Discoverer, Discovery
from pipeline.deepgemm.launch_spec import problems_json
from pipeline.deepgemm.store import tree_digest
from pipeline.engine.errors import HostError
from pipeline.engine.scratch import scratch_folder
from pipeline.servers.shared.problems import Problem

RESULT = "discovery.json"
PACKAGE = Path(__file__).parents[1]
CHILD_CODE = (
    "arithmetic.py",
    "deepgemm/launch_spec.py",
    "deepgemm/launchers",
    "deepgemm/worker.py",
    "engine/forks.py",
    "servers/shared/problems.py",
)
"""Modules and packages of ours that the worker imports."""


@dataclass(frozen=True, slots=True)
class RememberedDiscovery:
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


def child_files() -> list[Path]:
    """Every file of ours that runs in the worker."""
    paths = [PACKAGE / name for name in CHILD_CODE]
    return [file for path in paths for file in (sorted(path.glob("*.py")) if path.is_dir() else [path])]


def discovery_digest(problems: Sequence[Problem], discoverer: Discoverer) -> str:
    """Hash of everything that decides which keys a discovery gives, the virtual GPU's shared objects included."""
    parts = (
        json.dumps(problems_json(problems)),
        json.dumps(discoverer.gpu.environment(), sort_keys=True),
        discoverer.toolkit.version_text,
        tree_digest(str(package_folder(home=discoverer.deep_gemm))),
        distribution_version("torch") or "",
        *(path.read_text() for path in child_files()),
        STAND_IN.read_text(),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def remembered(root: Path, digest: str, discover: Callable[[Path], Discovery]) -> RememberedDiscovery:
    """The discovery of this digest; made by `discover(cache directory)` when it is not there yet."""
    folder = root / "discoveries" / digest
    if (folder / RESULT).exists():
        return RememberedDiscovery(_read(folder), folder / "deep_gemm", is_new=False)
    with scratch_folder(root / "scratch", "memo-") as staging:
        new = staging / "new"
        discovery = discover(new / "deep_gemm")
        (new / RESULT).write_text(json.dumps(discovery.to_json()))
        folder.parent.mkdir(parents=True, exist_ok=True)
        # A concurrent run may have been first; its result is the same.
        with contextlib.suppress(OSError):
            new.rename(folder)
    return RememberedDiscovery(_read(folder), folder / "deep_gemm", is_new=True)


def _read(folder: Path) -> Discovery:
    return Discovery.from_json(json.loads((folder / RESULT).read_text()))
