"""A place without compilers: each stands there by name, writes down that it was called, and fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.asking.installed import InstalledServer
from pipeline.deepgemm.toolkit import Toolkit

COMPILERS = ("nvcc", "ninja", "ptxas", "cicc", "fatbinary", "nvlink", "cudafe++")
# Triton brings its own, of other versions.
TRITONS = ("ptxas", "ptxas-blackwell")
# From this release of CUDA on flashinfer/triton/__init__.py points Triton at the ptxas on PATH for sm_100.
PTXAS_OF_PATH = (13, 0)
# It tells its version as the real one does, because that text is part of cache keys; anything else is a compilation.
REFUSING = """\
#!/bin/sh
case " $* " in *" --version "*) exec cat "{version}" ;; esac
echo "{name} $*" >>"{calls}"
echo "preheat: {name} is hidden: $*" >&2
exit 1
"""


@dataclass(frozen=True, slots=True)
class HiddenCompilers:
    """The folder in which they stand."""

    folder: Path
    ptxas_for_sm100: Path
    """Which of them Triton calls for sm_100."""

    @property
    def calls(self) -> list[str]:
        """What was called, as command lines."""
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def environment(self) -> Mapping[str, str]:
        """Variables under which a server finds only these."""
        nvcc = str(self.folder / "bin" / "nvcc")
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "CUDA_HOME": str(self.folder),
            "CUDACXX": nvcc,
            "DG_JIT_NVCC_COMPILER": nvcc,
            "TRITON_PTXAS_PATH": str(self.folder / "triton" / "ptxas"),
            "TRITON_PTXAS_BLACKWELL_PATH": str(self.ptxas_for_sm100),
        }


def hide_compilers(folder: Path, server: InstalledServer, toolkit: Toolkit) -> HiddenCompilers:
    """Set them up in `folder`; the toolkit's headers stay reachable."""
    on_path = (server.python.parent, toolkit.nvcc.parent)
    tritons = server.site_packages / "triton/backends/nvidia/bin"
    for name in COMPILERS:
        _refuse(folder, "bin", name, toolkit.version_text if name == "nvcc" else version_of(name, on_path))
    for name in TRITONS:
        _refuse(folder, "triton", name, version_of(name, (tritons,)))
    for name in ("include", "targets", "nvvm", "lib64", "lib"):
        if (toolkit.cuda_home / name).exists():
            (folder / name).symlink_to(toolkit.cuda_home / name)
    of_path = toolkit.release >= PTXAS_OF_PATH
    return HiddenCompilers(folder, folder / "bin" / "ptxas" if of_path else folder / "triton" / "ptxas-blackwell")


def _refuse(folder: Path, place: str, name: str, version_text: str) -> None:
    script = folder / place / name
    version = folder / place / f"{name}.version"
    script.parent.mkdir(parents=True, exist_ok=True)
    version.write_text(version_text)
    script.write_text(REFUSING.format(name=name, version=version, calls=folder / "calls"))
    script.chmod(0o755)


def version_of(name: str, folders: Sequence[Path]) -> str:
    """What the first compiler of that name says to --version."""
    for program in (folder / name for folder in folders):
        if program.exists():
            return subprocess.run([str(program), "--version"], capture_output=True, text=True).stdout
    return f"{name} is hidden\n"
