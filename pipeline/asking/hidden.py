"""A place without compilers: each stands there by name, writes down that it was called, and fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.asking.installed import InstalledServer
from pipeline.deepgemm.toolkit import Toolkit

COMPILERS = ("nvcc", "ninja", "ptxas", "cicc", "fatbinary", "nvlink", "cudafe++")
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

    @property
    def calls(self) -> list[str]:
        """What was called, as command lines."""
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def environment(self) -> Mapping[str, str]:
        """Variables under which a server finds only these."""
        nvcc, ptxas = str(self.folder / "bin" / "nvcc"), str(self.folder / "bin" / "ptxas")
        return {
            "PATH": f"{self.folder / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "CUDA_HOME": str(self.folder),
            "CUDACXX": nvcc,
            "DG_JIT_NVCC_COMPILER": nvcc,
            "TRITON_PTXAS_PATH": ptxas,
            "TRITON_PTXAS_BLACKWELL_PATH": ptxas,
        }


def hide_compilers(folder: Path, server: InstalledServer, toolkit: Toolkit) -> HiddenCompilers:
    """Set them up in `folder`; the toolkit's headers stay reachable."""
    (folder / "bin").mkdir(parents=True)
    for name in COMPILERS:
        version = folder / f"{name}.version"
        version.write_text(toolkit.version_text if name == "nvcc" else version_of(name, server, toolkit))
        script = folder / "bin" / name
        script.write_text(REFUSING.format(name=name, version=version, calls=folder / "calls"))
        script.chmod(0o755)
    for name in ("include", "targets", "nvvm", "lib64", "lib"):
        if (toolkit.cuda_home / name).exists():
            (folder / name).symlink_to(toolkit.cuda_home / name)
    return HiddenCompilers(folder)


def version_of(name: str, server: InstalledServer, toolkit: Toolkit) -> str:
    """What the compiler that the server would call says to --version: Triton brings its own ptxas."""
    triton = server.site_packages / "triton" / "backends" / "nvidia" / "bin" / name
    for program in (triton, server.python.parent / name, toolkit.nvcc.parent / name):
        if program.exists():
            return subprocess.run([str(program), "--version"], capture_output=True, text=True).stdout
    return f"{name} is hidden\n"
