"""Which server is installed where, and what its own builds need that this machine's toolkit may lack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.errors import HostError
from pipeline.workload.servers import release

REQUIREMENTS = "requirements-sglang.txt"
TESTED = (0, 5, 23)
"""The release of SGLang whose scheduler `inside/rank.py` starts."""
HOW_TO_INSTALL = (
    f"python -m venv sglang && sglang/bin/pip install -r {REQUIREMENTS}, then server.python=sglang/bin/python"
)
# Distributions that decide what a server compiles; the first is the server.
DISTRIBUTIONS = ("sglang", "torch", "triton", "flashinfer-python", "sgl-deep-gemm", "sglang-kernel", "apache-tvm-ffi")
QUESTION = """
import json, sys, sysconfig
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = None
print(json.dumps({"versions": found, "site": sysconfig.get_paths()["purelib"]}))
"""
# Headers and libraries that FlashInfer's modules want and a trimmed toolkit has not; pip's nvidia wheels do.
LIBRARIES_OF_WHEELS = ("cublas", "cublasLt", "cudart", "nvrtc", "curand")


@dataclass(frozen=True, slots=True)
class InstalledServer:
    """A Python that has the server, and the versions that decide what it compiles."""

    python: Path
    site_packages: Path
    versions: dict[str, str | None]

    @property
    def version(self) -> str:
        """The server's own."""
        return self.versions["sglang"] or ""


def find_server(python: str | None) -> InstalledServer:
    """The SGLang of `python`, by default of this Python; found without importing it.

    Raises HostError when there is none, or one that was not tested, with the line that installs the right one.
    """
    interpreter = Path(python or sys.executable)
    try:
        asked = [str(interpreter), "-c", QUESTION, *DISTRIBUTIONS]
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"server.python={interpreter} does not run: {error}; {HOW_TO_INSTALL}") from error
    said = json.loads(answer.stdout)
    server = InstalledServer(interpreter.absolute(), Path(said["site"]), said["versions"])
    if server.versions["sglang"] is None:
        raise HostError(f"{interpreter} has no sglang; {HOW_TO_INSTALL}")
    if release(server.version) != TESTED:
        tested = ".".join(map(str, TESTED))
        raise HostError(f"{interpreter} has sglang {server.version}, tested is {tested}; {HOW_TO_INSTALL}")
    return server


def build_environment(server: InstalledServer, toolkit: Toolkit, folder: Path, driver: Path) -> dict[str, str]:
    """Variables with which the server's modules compile and link on a machine with a trimmed toolkit and no driver.

    `folder` gets links to what the toolkit lacks and the server's nvidia wheels have; `driver` is a libcuda.so.1.
    """
    include = folder / "include"
    lib = folder / "lib"
    include.mkdir(parents=True, exist_ok=True)
    lib.mkdir(parents=True, exist_ok=True)
    own = {path.name for path in _toolkit_headers(toolkit)}
    wheels = server.site_packages / "nvidia" / "cu13"
    for header in sorted((wheels / "include").glob("cu*.h")):
        if header.name not in own and header.name.startswith(("cublas", "curand")):
            _link(include / header.name, header)
    _link(lib / "libcuda.so", driver)
    for name in LIBRARIES_OF_WHEELS:
        for library in sorted((wheels / "lib").glob(f"lib{name}.so.*"))[:1]:
            _link(lib / f"lib{name}.so", library)
    inherited = {name: os.environ.get(name) for name in ("CPATH", "LIBRARY_PATH")}
    return {
        name: ":".join(filter(None, [str(path), inherited[name]]))
        for name, path in (("CPATH", include), ("LIBRARY_PATH", lib))
    }


def _toolkit_headers(toolkit: Toolkit) -> list[Path]:
    folders = [toolkit.cuda_home / "include", toolkit.cuda_home / "targets" / "x86_64-linux" / "include"]
    return [header for folder in folders for header in folder.glob("*.h")]


def _link(link: Path, target: Path) -> None:
    if not link.exists():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
