"""Keys of DeepGEMM's classic JIT (0.1.x), and moving a cache to another include path.

A key there is `kernel.<name>.<digest>`, and the digest covers the compiler's flags with their -I path: the same wheel
in another folder finds none of the kernels. Since kernel.cu holds exactly the hashed code, a cache can be given the
names that another folder would look for. The newer JIT (0.2.x) leaves paths out of its keys and needs none of this.

Source: DeepGEMM release/v0.1.2, csrc/jit/compiler.hpp (what is hashed) and csrc/utils/hash.hpp (how).
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.errors import StageError
from pipeline.engine.scratch import scratch_folder

CLASSIC_KEY = re.compile(r"kernel\.(?P<name>.+)\.(?P<digest>[0-9a-f]{32})")
FNV_PRIME = 0x100000001B3
FNV_SEEDS = (0xC6A4A7935BD1E995, 0x9E3779B97F4A7C15)
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
MASK_64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Compiler:
    """What enters a classic key beside name and code."""

    signature: str
    """NVCC<major>.<minor>."""
    flags: str
    """The options as one string, with -I<include path>."""

    def key(self, name: str, code: str) -> str:
        """The directory name of one kernel."""
        return f"kernel.{name}.{hex_digest(f'{name}$${self.signature}$${self.flags}$${code}')}"

    def at(self, include: Path) -> Compiler:
        """The same compiler, with the headers in another folder."""
        moved = [f"-I{include}" if word.startswith("-I") else word for word in self.flags.split(" ")]
        return Compiler(self.signature, " ".join(moved))


def compiler_of(arguments: Sequence[str], release: tuple[int, int]) -> Compiler:
    """From the arguments that the classic JIT gave its compiler: SOURCE -cubin -o CUBIN FLAGS..."""
    assert tuple(arguments[1:3]) == ("-cubin", "-o"), f"not the classic JIT's arguments: {arguments}"
    return Compiler(f"NVCC{release[0]}.{release[1]}", " ".join(arguments[4:]))


def hex_digest(text: str) -> str:
    """Two 64-bit FNV-1a streams, each through a splitmix64 finaliser, as 32 hex digits."""
    return "".join(f"{_mixed(_fnv1a(text.encode(), seed)):016x}" for seed in FNV_SEEDS)


def is_classic(key: str) -> bool:
    """Whether the name is one that the classic JIT gives."""
    return CLASSIC_KEY.fullmatch(key) is not None


def relocate(warm_cache: Path, compiler: Compiler, include: Path) -> dict[str, str]:
    """Rename every entry to what a wheel with its headers in `include` looks for; returns old key to new key.

    Every name is first recomputed with the compiler that made it. StageError when one does not match: then the rule
    or the record is not what made this cache, and nothing is touched.
    """
    entries = sorted(path for path in (warm_cache / "cache").iterdir() if path.is_dir())
    moved: dict[str, str] = {}
    for entry in entries:
        found = CLASSIC_KEY.fullmatch(entry.name)
        code = (entry / "kernel.cu").read_text()
        there = compiler.at(include).key(found["name"], code) if found else ""
        # An entry that an earlier run moved has its new name already.
        if found is None or entry.name not in (compiler.key(found["name"], code), there):
            raise StageError(
                f"{entry.name} is not the key that its own source gives with flags {compiler.flags!r}; "
                "export.relocate_to works only on a cache that this recipe baked with the classic JIT"
            )
        moved[entry.name] = there
    with scratch_folder(warm_cache, ".staging-") as staging:
        for old, new in moved.items():
            if old == new or (warm_cache / "cache" / new).exists():
                continue
            shutil.copytree(warm_cache / "cache" / old, staging / new)
            (staging / new).rename(warm_cache / "cache" / new)
        for old, new in moved.items():
            if old != new:
                shutil.rmtree(warm_cache / "cache" / old)
    return moved


def include_folder(path: Path) -> Path:
    """The include folder of a deep_gemm package, whether the package or the folder itself is named."""
    return path if path.name == "include" else path / "include"


def _fnv1a(data: bytes, seed: int) -> int:
    state = seed
    for byte in data:
        state = ((state ^ byte) * FNV_PRIME) & MASK_64
    return state


def _mixed(state: int) -> int:
    for shift, factor in MIX:
        state = ((state ^ (state >> shift)) * factor) & MASK_64
    return state ^ (state >> 31)
