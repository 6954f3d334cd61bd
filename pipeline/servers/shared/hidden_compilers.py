"""Hide every compiler behind a script of its name that logs the call and fails."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.deepgemm.toolkit import Toolkit
from pipeline.servers.shared.installed import InstalledServer

COMPILERS = ("nvcc", "ninja", "ptxas", "cicc", "fatbinary", "nvlink", "cudafe++")
# Triton's wheel has its own, of other versions.
TRITON_COMPILERS = ("ptxas", "ptxas-blackwell")
# From this release of CUDA on flashinfer/triton/__init__.py points Triton at the ptxas on PATH for sm_100.
PTXAS_FROM_PATH_SINCE = (13, 0)
# --version answers as the real compiler does, because that text is part of cache keys; any other call is a compilation.
SCRIPT = """\
#!/bin/sh
case " $* " in *" --version "*) exec cat "{version}" ;; esac
echo "{name} $*" >>"{calls}"
echo "preheat: {name} is hidden: $*" >&2
exit 1
"""


@dataclass(frozen=True, slots=True)
class HiddenCompilers:
    """The scripts and the log of their calls."""

    folder: Path
    ptxas_for_sm100: Path
    """The script that Triton calls for sm_100."""

    @property
    def calls(self) -> list[str]:
        """The command lines of all calls."""
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def environment(self) -> Mapping[str, str]:
        """Variables with which a server finds these scripts before any compiler."""
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
    """Write the scripts into `folder`, with links to the toolkit's headers and libraries."""
    on_path = (server.python.parent, toolkit.nvcc.parent)
    triton_bin = server.site_packages / "triton/backends/nvidia/bin"
    for name in COMPILERS:
        _write_script(folder, "bin", name, toolkit.version_text if name == "nvcc" else version_of(name, on_path))
    for name in TRITON_COMPILERS:
        _write_script(folder, "triton", name, version_of(name, (triton_bin,)))
    for name in ("include", "targets", "nvvm", "lib64", "lib"):
        if (toolkit.cuda_home / name).exists():
            (folder / name).symlink_to(toolkit.cuda_home / name)
    from_path = toolkit.release >= PTXAS_FROM_PATH_SINCE
    return HiddenCompilers(folder, folder / "bin" / "ptxas" if from_path else folder / "triton" / "ptxas-blackwell")


def _write_script(folder: Path, subfolder: str, name: str, version_text: str) -> None:
    script = folder / subfolder / name
    version = folder / subfolder / f"{name}.version"
    script.parent.mkdir(parents=True, exist_ok=True)
    version.write_text(version_text)
    script.write_text(SCRIPT.format(name=name, version=version, calls=folder / "calls"))
    script.chmod(0o755)


def version_of(name: str, folders: Sequence[Path]) -> str:
    """What the first compiler of this name in `folders` prints for --version."""
    for program in (folder / name for folder in folders):
        if program.exists():
            return subprocess.run([str(program), "--version"], capture_output=True, text=True).stdout
    return f"{name} is hidden\n"
