"""The caches that SGLang fills beside DeepGEMM's: where they lie, what is in them, and how they are found again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.asking.installed import InstalledServer
from pipeline.engine.report import write_atomically

FOLDER = "sglang"
"""In the output directory; SGLANG_CACHE_DIR points at it."""
PROVIDER = "python"
"""In the output directory; on PYTHONPATH it makes FlashInfer load its modules without ninja and without nvcc."""
# An entry of each cache is the folder that holds such a file.
ENTRIES = {
    "flashinfer": ".cache/flashinfer/*/*/cached_ops/*/*.so",
    "triton": "triton/*/*.cubin",
    "triton_launchers": "triton/*/*.so",
    "sglang_jit": "jit/*/*/*/*/*.so",
    "tilelang": "tilelang/*/*/kernels/*/executable.so",
    "inductor": "inductor/fxgraph/*/*/*",
}
# SGLang's own modules do not follow SGLANG_CACHE_DIR.
VARIABLES = {"SGLANG_CACHE_DIR": ".", "SGLANG_JIT_CACHE_DIR": "jit"}
# CuTe-DSL keeps no compiled kernel on disk. FlashInfer has its norms in CUDA too, and those it keeps.
INSTEAD_OF_CUTE = {"FLASHINFER_USE_CUDA_NORM": "1"}
SHIM = '''"""FlashInfer modules that are compiled already; flashinfer asks a package of this name for them."""

import json
from pathlib import Path
from types import SimpleNamespace

_FACTS = json.loads((Path(__file__).parent / "modules.json").read_text())
__version__ = _FACTS["version"]


def get_jit_cache_providers():
    """One provider: the folder that FlashInfer's own build left."""
    warm_cache = Path(__file__).parents[2]
    return [
        SimpleNamespace(
            provider_id="preheat",
            distribution="flashinfer-jit-cache",
            version=__version__,
            jit_cache_dir=warm_cache / folder,
            cuda_architectures=facts["architectures"],
            modules=facts["modules"],
        )
        for folder, facts in _FACTS["folders"].items()
    ]


def get_jit_cache_dir():
    """The folder of the older interface."""
    return str(Path(__file__).parents[2] / next(iter(_FACTS["folders"]), ""))
'''


def cache_variables(folder: Path) -> dict[str, str]:
    """What points a server at the caches under `folder`."""
    return {name: str(folder / below) for name, below in VARIABLES.items()}


def entries(folder: Path) -> dict[str, set[str]]:
    """What each cache under SGLANG_CACHE_DIR holds, as paths relative to it."""
    return {name: {_name(folder, path) for path in folder.glob(pattern)} for name, pattern in ENTRIES.items()}


def is_covered(once: Mapping[str, Sequence[str]], there: Mapping[str, set[str]]) -> bool:
    """Whether each cache still holds the entries that it once held."""
    return all(there[name].issuperset(names) for name, names in once.items())


def write_flashinfer_provider(output: Path, server: InstalledServer, sm: str) -> Path | None:
    """A package that FlashInfer finds its compiled modules by; None when there are none.

    `sm` is FlashInfer's name of the architecture, e.g. sm90a.
    """
    modules: dict[str, list[str]] = {}
    for path in sorted((output / FOLDER).glob(ENTRIES["flashinfer"])):
        if path.parent.name == path.stem:
            modules.setdefault(str(path.parents[1].relative_to(output)), []).append(path.stem)
    if not modules:
        return None
    package = output / PROVIDER / "flashinfer_jit_cache"
    folders = {folder: {"architectures": [sm], "modules": names} for folder, names in modules.items()}
    facts = {"version": server.versions["flashinfer-python"], "folders": folders}
    write_atomically(package / "modules.json", json.dumps(facts, indent=2) + "\n")
    write_atomically(package / "__init__.py", SHIM)
    return package.parent


def _name(folder: Path, path: Path) -> str:
    return str(path.parent.relative_to(folder))
