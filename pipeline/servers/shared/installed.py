"""Find an installed server, and give its own builds the headers and libraries that this machine's toolkit lacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.errors import HostError
from pipeline.servers.protocol import AskableServer
from pipeline.servers.shared.flags import release

QUESTION = """
import json, sys, sysconfig
from importlib.metadata import PackageNotFoundError, version
versions = {}
for name in sys.argv[1:]:
    try:
        versions[name] = version(name)
    except PackageNotFoundError:
        versions[name] = None
print(json.dumps({"versions": versions, "site": sysconfig.get_paths()["purelib"]}))
"""
# FlashInfer's modules link against these; a trimmed toolkit lacks them, and pip's nvidia wheels have them.
LIBRARIES_OF_WHEELS = ("cublas", "cublasLt", "cudart", "nvrtc", "curand")


@dataclass(frozen=True, slots=True)
class InstalledServer:
    """A Python with the server in it, and the versions that decide what the server compiles."""

    python: Path
    site_packages: Path
    version: str
    """Of the server itself."""
    versions: dict[str, str | None]
    """Of each distribution in AskableServer.distributions; None for one that is not installed."""


def find_server(askable: AskableServer, python: str | None) -> InstalledServer:
    """Look for the server in `python` (None: this Python) without importing it.

    HostError, with the command that installs it, when it is missing or is not the tested release.
    """
    interpreter = Path(python or sys.executable)
    name = askable.distributions[0]
    how_to_install = (
        f"python -m venv {name} && {name}/bin/pip install -r {askable.requirements}, "
        f"then server.python={name}/bin/python"
    )
    try:
        question = [str(interpreter), "-c", QUESTION, *askable.distributions]
        answer = subprocess.run(question, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise HostError(f"server.python={interpreter} does not run: {error}; {how_to_install}") from error
    facts = json.loads(answer.stdout)
    version = facts["versions"][name]
    if version is None:
        raise HostError(f"{interpreter} has no {name}; {how_to_install}")
    if release(version) != askable.tested:
        tested = ".".join(map(str, askable.tested))
        raise HostError(f"{interpreter} has {name} {version}, tested is {tested}; {how_to_install}")
    return InstalledServer(interpreter.absolute(), Path(facts["site"]), version, facts["versions"])


def build_environment(server: InstalledServer, toolkit: Toolkit, folder: Path, driver: Path) -> dict[str, str]:
    """Variables with which the server's modules compile and link where the toolkit is trimmed and there is no driver.

    `folder` gets links to the headers and libraries of the server's nvidia wheels; `driver` is a libcuda.so.1.
    """
    include = folder / "include"
    lib = folder / "lib"
    include.mkdir(parents=True, exist_ok=True)
    lib.mkdir(parents=True, exist_ok=True)
    toolkit_headers = {path.name for path in _toolkit_headers(toolkit)}
    wheels = server.site_packages / "nvidia" / "cu13"
    for header in sorted((wheels / "include").glob("cu*.h")):
        if header.name not in toolkit_headers and header.name.startswith(("cublas", "curand")):
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
