"""Build the shared objects with the system's C compiler, once for each version of their sources."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.errors import HostError
from pipeline.engine.scratch import scratch_folder
from pipeline.target import Target
from pipeline.virtual_gpu.headers import CUBLAS, NCCL, find_headers, find_optional_headers

SOURCES = Path(__file__).parent
DECLARED_RUNTIME = re.compile(r"CUDARTAPI\s+(cuda[A-Z]\w+)\s*\(")
DECLARED_DRIVER = re.compile(r"CUDAAPI\s+(cu[A-Z]\w+)\s*\(")
# These two also keep the last word of the return type.
DECLARED_CUBLAS = re.compile(r"([\w*]+)\s+CUBLASWINAPI\s+(cublas\w+)\s*\(")
DECLARED_NCCL = re.compile(r"^\s*(ncclResult_t)\s+(nccl[A-Z]\w+)\s*\(", re.MULTILINE)
VERSIONED_DRIVER = re.compile(r"#\s*define\s+cu[A-Z]\w+\s+(cu[A-Z]\w+_v\d+)\b")
# libcudart answers these from its own tables, without a driver.
LEFT_TO_LIBCUDART = {"cudaGetErrorName", "cudaGetErrorString", "cudaProfilerStart", "cudaProfilerStop"}
# A long fills the register that a caller reads a pointer or a size from.
GENERATED = """\
#include <stdio.h>
#define UNANSWERED(name, error) \\
    __attribute__((weak)) long name(void) { \\
        fprintf(stderr, "virtual GPU: " #name " is not answered\\n"); \\
        return error; \\
    }
#define NOTHING_TO_DO(name) __attribute__((weak)) long name(void) { return 0; }
"""
NOT_SUPPORTED = 801  # cudaErrorNotSupported and CUDA_ERROR_NOT_SUPPORTED
# CUBLAS_STATUS_NOT_SUPPORTED and ncclInternalError; a function that returns a pointer or a size returns NULL or 0.
ERRORS = {"cublasStatus_t": 15, "ncclResult_t": 3}
# What asks or makes something hands it back to its caller. The rest of cuBLAS and NCCL sets, ends or launches (a
# product, a collective), and on this GPU launches do nothing.
HANDS_BACK = re.compile(r"Get|Query|Stats|Simulate|Create|Init|Split|Shrink|Grow|Bind")


@dataclass(frozen=True, slots=True)
class VirtualGpu:
    """Where the built objects are, and how to start a process on them."""

    folder: Path
    target: Target

    def environment(self) -> dict[str, str]:
        """Variables to add to a child's environment; the child removes the preload from its own children's."""
        paths = [str(self.folder), os.environ.get("LD_LIBRARY_PATH", "")]
        preloaded = [self.folder / name for name in ("libvcudart.so", "libvcublas.so", "libvnccl.so")]
        return {
            "LD_PRELOAD": ":".join(str(path) for path in preloaded if path.exists()),
            "LD_LIBRARY_PATH": ":".join(path for path in paths if path),
            **self.target.environment(),
        }


def build(target: Target, *, cache_dir: Path, cuda_home: Path | None = None) -> VirtualGpu:
    """Return the virtual GPU of `target`, compiling it into `cache_dir` unless that was done before.

    Raises HostError without a C compiler or without CUDA headers.
    """
    include = find_headers(cuda_home)
    cublas, nccl = (find_optional_headers(names, cuda_home) for names in (CUBLAS, NCCL))
    headers = [include / "cuda.h", include / "cuda_runtime_api.h"]
    headers += [cublas / name for name in CUBLAS if cublas] + [nccl / name for name in NCCL if nccl]
    folder = cache_dir / f"virtual_gpu-{_digest(headers)}"
    if not (folder / "libcuda.so.1").exists():
        with scratch_folder(cache_dir, ".build-") as staging:
            built = staging / "built"
            built.mkdir()
            _compile(built, include)
            if cublas is not None:
                source = library_source(_text(cublas, CUBLAS), DECLARED_CUBLAS)
                _compile_library(built, "cublas", source, [cublas, include])
            if nccl is not None:
                source = library_source(_text(nccl, NCCL), DECLARED_NCCL)
                _compile_library(built, "nccl", source, [nccl, include])
            _move_into_place(built, folder)
    return VirtualGpu(folder, target)


def c_compiler() -> str:
    """The C compiler's command: $CC, else cc, gcc or clang on PATH; HostError when there is none."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    raise HostError("no C compiler (tried $CC, cc, gcc, clang); apt-get install gcc, or set CC")


def unanswered_source(header_text: str, patterns: list[re.Pattern[str]]) -> str:
    """C source that defines every declared function as weak, naming itself and failing when called."""
    names = {name for pattern in patterns for name in pattern.findall(header_text)} - LEFT_TO_LIBCUDART
    return GENERATED + "\n".join(f"UNANSWERED({name}, {NOT_SUPPORTED})" for name in sorted(names)) + "\n"


def library_source(header_text: str, pattern: re.Pattern[str]) -> str:
    """C source that defines every function that cuBLAS or NCCL declares as weak.

    One that hands a result back names itself and fails; the others do nothing and succeed.
    """
    declared = {name: returned for returned, name in pattern.findall(header_text)}
    lines = [
        f"UNANSWERED({name}, {ERRORS.get(returned, 0)})" if HANDS_BACK.search(name) else f"NOTHING_TO_DO({name})"
        for name, returned in sorted(declared.items())
    ]
    return GENERATED + "\n".join(lines) + "\n"


def _compile(folder: Path, include: Path) -> None:
    runtime_header = (include / "cuda_runtime_api.h").read_text()
    driver_header = (include / "cuda.h").read_text()
    (folder / "unanswered_runtime.c").write_text(unanswered_source(runtime_header, [DECLARED_RUNTIME]))
    (folder / "unanswered_driver.c").write_text(unanswered_source(driver_header, [DECLARED_DRIVER, VERSIONED_DRIVER]))
    _link(folder, [include], "libvcudart.so", SOURCES / "cudart.c", folder / "unanswered_runtime.c")
    driver = [SOURCES / "driver.c", SOURCES / "driver_runtime.c", folder / "unanswered_driver.c"]
    _link(folder, [include], "libcuda.so.1", *driver)
    _link(folder, [include], "libnvidia-ml.so.1", SOURCES / "nvml.c")


def _text(folder: Path, headers: tuple[str, ...]) -> str:
    return "\n".join((folder / header).read_text() for header in headers)


def _compile_library(folder: Path, name: str, source: str, includes: list[Path]) -> None:
    rest = folder / f"generated_{name}.c"
    rest.write_text(source)
    _link(folder, includes, f"libv{name}.so", SOURCES / f"{name}.c", rest)


def _link(folder: Path, includes: list[Path], output: str, *sources: Path) -> None:
    command = [c_compiler(), "-std=gnu11", "-O1", "-shared", "-fPIC", "-pthread", f"-Wl,-soname,{output}"]
    command += [f"-I{path}" for path in includes]
    command += ["-o", str(folder / output), *map(str, sources), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise HostError(f"the C compiler could not build the virtual GPU: {' '.join(command)}\n{done.stderr}")


def _digest(headers: list[Path]) -> str:
    hashed = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(SOURCES.glob("*.c")) + headers:
        hashed.update(path.read_bytes())
    return hashed.hexdigest()[:16]


def _move_into_place(built: Path, folder: Path) -> None:
    try:
        built.rename(folder)
    except OSError:
        # Another process built the same sources first; its objects are as good.
        if not (folder / "libcuda.so.1").exists():
            raise
