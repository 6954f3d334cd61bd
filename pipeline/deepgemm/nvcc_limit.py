"""The oldest nvcc that a deep_gemm takes: it refuses older ones itself, but only after many M, and in a C++ trace."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from pipeline.deepgemm.memo import distribution_version, package_folder
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.errors import HostError

DISTRIBUTION = "sgl-deep-gemm"
# The library's own assertion: deep_jit/backend/cuda/backend.hpp (0.2.x), csrc/jit/compiler.hpp (0.1.x).
OWN_MESSAGE = re.compile(rb"NVCC version (?:must|should) be (?:at least|>=) (\d+)\.(\d+)")


def require_nvcc_of_library(toolkit: Toolkit, deep_gemm: str | None) -> None:
    """HostError when the deep_gemm in this folder (None: the installed one) refuses the toolkit's release."""
    oldest = oldest_nvcc(package_folder(home=deep_gemm))
    if oldest is None or toolkit.release >= oldest:
        return
    if deep_gemm is None:
        library = f"{DISTRIBUTION} {distribution_version(DISTRIBUTION)}"
    else:
        library = f"the deep_gemm of toolkit.deep_gemm={deep_gemm}"
    need = ".".join(map(str, oldest))
    raise HostError(
        f"{library} needs nvcc {need} or newer, got {toolkit.describe()}; set toolkit.cuda_home to a newer toolkit"
    )


def oldest_nvcc(package: Path) -> tuple[int, int] | None:
    """The release that the package's own message names; None for a library that names none."""
    for library in sorted(package.glob("*.so")):
        with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if (match := OWN_MESSAGE.search(content)) is not None:
                return int(match[1]), int(match[2])
    return None
