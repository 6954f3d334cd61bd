"""Find the CUDA compiler and say exactly which one it is, because its version text enters every kernel key."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.errors import HostError
from pipeline.target import Target
from pipeline.virtual_gpu.headers import nvidia_folders

RELEASE = re.compile(r"release (\d+)\.(\d+)")
DRYRUN_TOP = re.compile(r"^#\$ TOP=(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Toolkit:
    """One CUDA compiler: `source` says which rule chose it."""

    nvcc: Path
    cuda_home: Path
    version_text: str
    source: str

    @property
    def release(self) -> tuple[int, int]:
        """major.minor of the release, e.g. (13, 0)."""
        match = RELEASE.search(self.version_text)
        if match is None:
            raise HostError(f"{self.nvcc} --version names no release: {self.version_text!r}; set toolkit.cuda_home")
        return int(match[1]), int(match[2])

    @property
    def digest(self) -> str:
        """Short hash of the whole version text; two builds of one release differ."""
        return hashlib.sha256(self.version_text.encode()).hexdigest()[:16]

    def describe(self) -> str:
        """One line for people: release, build, and where it was found."""
        build = self.version_text.strip().splitlines()[-1]
        return f"nvcc {self.release[0]}.{self.release[1]} ({build}) from {self.source}"

    def require(self, target: Target) -> None:
        """Raise HostError when this release cannot compile for the target."""
        if self.release < target.min_nvcc:
            need = ".".join(map(str, target.min_nvcc))
            raise HostError(
                f"{target.name} (compute capability {target.compute_capability}) needs nvcc {need} or newer, "
                f"got {self.describe()}; set toolkit.cuda_home to a newer toolkit"
            )


def find_toolkit(cuda_home: str | None = None, *, wheel_roots: Sequence[Path] | None = None) -> Toolkit:
    """The first of: `cuda_home`, $CUDA_HOME, nvcc on PATH, the nvidia-cuda-nvcc wheel.

    `wheel_roots` are the folders of the nvidia package, by default those of this Python.
    A place that is named but holds no nvcc is an error, never passed over: the user meant it.
    """
    for source, nvcc in _candidates(cuda_home, nvidia_folders() if wheel_roots is None else wheel_roots):
        if nvcc is None:
            continue
        if not nvcc.is_file() or not os.access(nvcc, os.X_OK):
            raise HostError(f"{source} names no compiler: {nvcc} is not an executable file; correct or unset it")
        return _inspect(nvcc, source)
    raise HostError(
        "no nvcc: toolkit.cuda_home and CUDA_HOME are unset, PATH has none and the nvidia-cuda-nvcc wheel is not "
        "installed; pip install -r requirements.txt brings one"
    )


def _candidates(cuda_home: str | None, wheel_roots: Sequence[Path]) -> list[tuple[str, Path | None]]:
    on_path = shutil.which("nvcc")
    return [
        ("toolkit.cuda_home", Path(cuda_home) / "bin" / "nvcc" if cuda_home else None),
        ("CUDA_HOME", Path(os.environ["CUDA_HOME"]) / "bin" / "nvcc" if os.environ.get("CUDA_HOME") else None),
        ("PATH", Path(on_path) if on_path else None),
        ("the nvidia-cuda-nvcc wheel", _wheel_nvcc(wheel_roots)),
    ]


def _wheel_nvcc(roots: Sequence[Path]) -> Path | None:
    compilers = (root / "cu13" / "bin" / "nvcc" for root in roots)
    return next((nvcc for nvcc in compilers if nvcc.is_file()), None)


def _inspect(nvcc: Path, source: str) -> Toolkit:
    version = _run(nvcc, "--version").stdout
    # nvcc may be a wrapper script somewhere on PATH; only the compiler itself knows where its toolkit is.
    top = DRYRUN_TOP.search(_run(nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull).stderr)
    home = Path(top[1]).resolve() if top else nvcc.resolve().parent.parent
    return Toolkit(nvcc=nvcc, cuda_home=home, version_text=version, source=source)


def _run(nvcc: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run([str(nvcc), *arguments], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostError(f"{nvcc} does not run: {error}; set toolkit.cuda_home to a working toolkit") from error
