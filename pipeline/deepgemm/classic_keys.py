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

from pipeline.deepgemm.compiler import Source
from pipeline.engine.errors import StageError
from pipeline.engine.scratch import scratch_folder

CLASSIC_KEY = re.compile(r"kernel\.(?P<name>.+)\.(?P<digest>[0-9a-f]{32})")
FNV_PRIME = 0x100000001B3
FNV_SEEDS = (0xC6A4A7935BD1E995, 0x9E3779B97F4A7C15)
MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
MASK_64 = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class CompilerRecord:
    """What enters a classic key beside name and code."""

    signature: str
    """NVCC<major>.<minor>."""
    flags: str
    """The options as one string, with -I<include path>."""

    def key(self, name: str, code: str) -> str:
        """The directory name of one kernel."""
        return f"kernel.{name}.{hex_digest(f'{name}$${self.signature}$${self.flags}$${code}')}"

    def with_include(self, include: Path) -> CompilerRecord:
        """The same compiler, with the headers in another folder."""
        flags = [f"-I{include}" if flag.startswith("-I") else flag for flag in self.flags.split(" ")]
        return CompilerRecord(self.signature, " ".join(flags))


def compiler_of(arguments: Sequence[str], release: tuple[int, int]) -> CompilerRecord:
    """From the arguments that the classic JIT gave its compiler: SOURCE -cubin -o CUBIN FLAGS..."""
    assert tuple(arguments[1:3]) == ("-cubin", "-o"), f"not the classic JIT's arguments: {arguments}"
    return CompilerRecord(f"NVCC{release[0]}.{release[1]}", " ".join(arguments[4:]))


def relocation(sources: Sequence[Source], release: tuple[int, int]) -> CompilerRecord | None:
    """The compiler record of a classic cache, None where keys hold no path."""
    if not sources or not all(is_classic(source.key) for source in sources):
        return None
    return compiler_of(sources[0].arguments, release)


def hex_digest(text: str) -> str:
    """Two 64-bit FNV-1a streams, each through a splitmix64 finaliser, as 32 hex digits."""
    return "".join(f"{_mixed(_fnv1a(text.encode(), seed)):016x}" for seed in FNV_SEEDS)


def is_classic(key: str) -> bool:
    """Whether the name is one that the classic JIT gives."""
    return CLASSIC_KEY.fullmatch(key) is not None


def relocate(warm_cache: Path, compiler: CompilerRecord, include: Path) -> dict[str, str]:
    """Rename every entry to what a wheel with its headers in `include` looks for; returns old key to new key.

    StageError when one name is not what `compiler` gives: then the rule or the record is not what made this cache,
    and nothing is touched.
    """
    entries = warm_cache / "cache"
    new_keys = {
        entry.name: relocated_key(entry, compiler, include) for entry in sorted(entries.iterdir()) if entry.is_dir()
    }
    with scratch_folder(warm_cache, ".staging-") as staging:
        for old, new in new_keys.items():
            if old == new or (entries / new).exists():
                continue
            shutil.copytree(entries / old, staging / new)
            (staging / new).rename(entries / new)
        for old, new in new_keys.items():
            if old != new:
                shutil.rmtree(entries / old)
    return new_keys


def relocated_key(entry: Path, compiler: CompilerRecord, include: Path) -> str:
    """The entry's name with the headers in `include`; StageError when `compiler` does not give its present name."""
    match = CLASSIC_KEY.fullmatch(entry.name)
    if match is not None:
        code = (entry / "kernel.cu").read_text()
        new_key = compiler.with_include(include).key(match["name"], code)
        # An entry that an earlier run renamed has its new name already.
        if entry.name in (compiler.key(match["name"], code), new_key):
            return new_key
    raise StageError(
        f"{entry.name} is not the key that its own source gives with flags {compiler.flags!r}; "
        "export.relocate_to works only on a cache that this recipe baked with the classic JIT"
    )


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
