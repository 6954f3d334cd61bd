"""The directory that DeepGEMM reads: stubs become real cubins, and entries appear whole or not at all.

Both JIT generations keep `cache/<key>/kernel.cu` and `kernel.cubin`; the newer one adds `meta.json` and an empty
`.committed`, without which it ignores an entry. What is there is carried over, so the two need no telling apart.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.deepgemm.compiler import Source
from pipeline.deepgemm.cubin import STUB_MARKER, check_cubin
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.scratch import scratch_folder

ENTRY_FILES = {"kernel.cu", "kernel.cubin", "meta.json", ".committed"}
# A server that reads the cache may add the last two.
FOLDERS = {"cache", "locks", "tmp"}
STAGING_PREFIX = ".staging-"


@dataclass(slots=True)
class PublishedKeys:
    """What publishing did with each key."""

    added: list[str] = field(default_factory=list[str])
    kept: list[str] = field(default_factory=list[str])
    """Their entries were there already, and good."""
    replaced: list[str] = field(default_factory=list[str])
    """Their entries were damaged."""

    def extend(self, later: PublishedKeys) -> None:
        """Add what publishing more keys did; a key that was published before counts as it did then."""
        earlier = {*self.added, *self.kept, *self.replaced}
        self.added += [key for key in later.added if key not in earlier]
        self.kept += [key for key in later.kept if key not in earlier]
        self.replaced += [key for key in later.replaced if key not in earlier]


def read_sources(stub_cache: Path) -> list[Source]:
    """Every kernel that discovery left in its private cache, with the compiler arguments that its stub holds."""
    sources: list[Source] = []
    for entry in sorted((stub_cache / "cache").iterdir()):
        marker, *arguments = (entry / "kernel.cubin").read_text().splitlines()
        assert marker.encode() == STUB_MARKER, f"{entry} was not made by the stand-in compiler"
        sources.append(Source(key=entry.name, text=(entry / "kernel.cu").read_text(), arguments=tuple(arguments)))
    return sources


def publish(stub_cache: Path, cubins: dict[str, Path], warm_cache: Path, *, toolkit: Toolkit, sm: int) -> PublishedKeys:
    """Put an entry with the real cubin into `warm_cache` for each key; a good one that is there already stays."""
    published = PublishedKeys()
    entries = warm_cache / "cache"
    entries.mkdir(parents=True, exist_ok=True)
    with scratch_folder(warm_cache, STAGING_PREFIX) as staging:
        for key, cubin in cubins.items():
            target = entries / key
            if target.exists() and not entry_faults(target, sm):
                published.kept.append(key)
                continue
            _stage(stub_cache / "cache" / key, cubin, staging / key, toolkit)
            if target.exists():
                target.rename(staging / f"damaged-{key}")
                published.replaced.append(key)
            else:
                published.added.append(key)
            _rename_unless_there(staging / key, target)
    return published


def entry_faults(entry: Path, sm: int) -> list[str]:
    """What is wrong with one published entry; empty when a server can load it."""
    faults = [f"{entry / name}: is missing" for name in ("kernel.cu", "kernel.cubin") if not (entry / name).is_file()]
    if (entry / "meta.json").exists() != (entry / ".committed").exists():
        faults.append(f"{entry}: meta.json and .committed belong together, one is missing")
    faults += [f"{path}: does not belong here" for path in sorted(entry.iterdir()) if path.name not in ENTRY_FILES]
    if (entry / "kernel.cubin").is_file() and (fault := check_cubin(entry / "kernel.cubin", sm)):
        faults.append(fault)
    return faults


def cache_faults(warm_cache: Path, sm: int) -> tuple[int, list[str]]:
    """(entries checked, what is wrong with them or lies beside them)."""
    entries = sorted((warm_cache / "cache").iterdir()) if (warm_cache / "cache").is_dir() else []
    faults = [fault for entry in entries for fault in entry_faults(entry, sm)]
    strangers = [path for path in sorted(warm_cache.glob("*")) if path.name not in FOLDERS and not _is_staging(path)]
    return len(entries), faults + [f"{path}: does not belong here" for path in strangers]


def _stage(stub_entry: Path, cubin: Path, staged: Path, toolkit: Toolkit) -> None:
    shutil.copytree(stub_entry, staged, ignore=shutil.ignore_patterns("kernel.cubin"))
    shutil.copyfile(cubin, staged / "kernel.cubin")
    meta = staged / "meta.json"
    if meta.exists():
        meta.write_text(json.dumps(with_real_compiler(json.loads(meta.read_text()), toolkit)))


def with_real_compiler(meta: dict[str, Any], toolkit: Toolkit) -> dict[str, Any]:
    """DeepGEMM's record of how a kernel was made, naming the compiler that made it and no working folder."""
    command = str(meta.get("command", "")).split()
    arguments = [Path(word).name if word.endswith((".cu", ".cubin")) else word for word in command[1:]]
    compiler = {**meta.get("compiler_info", {}), "path": str(toolkit.nvcc)}
    return {**meta, "command": " ".join([str(toolkit.nvcc), *arguments]), "compiler_info": compiler}


def _rename_unless_there(staged: Path, target: Path) -> None:
    try:
        staged.rename(target)
    except OSError:
        # Another run published the same key in between; the content is the same.
        if not target.is_dir():
            raise


def _is_staging(path: Path) -> bool:
    return path.name.startswith(STAGING_PREFIX)
