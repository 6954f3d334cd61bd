"""A package that tells FlashInfer where its compiled modules are, so that it needs neither ninja nor nvcc."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.engine.report import write_atomically

PROVIDER = "python"
"""The package's folder in the output directory; it goes on PYTHONPATH."""
MODULES = ".cache/flashinfer/*/*/cached_ops/*/*.so"
"""Where FlashInfer keeps its modules below a server's cache folder."""
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


def write_flashinfer_provider(output: Path, caches: str, *, flashinfer_version: str | None, sm: str) -> Path | None:
    """Write the package for the modules in the cache folder `caches` of `output`; None when there are none.

    `sm` is FlashInfer's name of the architecture, e.g. sm90a.
    """
    modules: dict[str, list[str]] = {}
    for path in sorted((output / caches).glob(MODULES)):
        if path.parent.name == path.stem:
            modules.setdefault(str(path.parents[1].relative_to(output)), []).append(path.stem)
    if not modules:
        return None
    package = output / PROVIDER / "flashinfer_jit_cache"
    folders = {folder: {"architectures": [sm], "modules": names} for folder, names in modules.items()}
    facts = {"version": flashinfer_version, "folders": folders}
    write_atomically(package / "modules.json", json.dumps(facts, indent=2) + "\n")
    write_atomically(package / "__init__.py", SHIM)
    return package.parent
