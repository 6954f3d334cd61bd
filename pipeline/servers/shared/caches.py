"""The caches that a server fills beside DeepGEMM's: where they lie and what is in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

# CuTe-DSL keeps no compiled kernel on disk. FlashInfer has its norms in CUDA too, and those it keeps.
INSTEAD_OF_CUTE = {"FLASHINFER_USE_CUDA_NORM": "1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches:
    """One folder in the output directory with a cache of each kind."""

    folder: str
    """Its name in the output directory."""
    patterns: Mapping[str, str]
    """By cache: the files of which each makes the folder it lies in an entry."""
    variables: Mapping[str, str]
    """Environment variables that point the server at a path below the folder."""

    def environment(self, folder: Path) -> dict[str, str]:
        """What points the server at the caches under `folder`."""
        return {name: str(folder / below) for name, below in self.variables.items()}

    def entries(self, folder: Path) -> dict[str, set[str]]:
        """What each cache under `folder` holds, as paths relative to it."""
        return {
            name: {str(path.parent.relative_to(folder)) for path in folder.glob(pattern)}
            for name, pattern in self.patterns.items()
        }


def is_covered(earlier: Mapping[str, Sequence[str]], present: Mapping[str, set[str]]) -> bool:
    """Whether each cache of `present` has every entry that `earlier` lists for it."""
    return all(present[name].issuperset(names) for name, names in earlier.items())
