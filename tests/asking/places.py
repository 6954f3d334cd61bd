"""A starter whose server is the fake rank, on a virtual GPU that is never loaded."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from pipeline.asking.installed import InstalledServer
from pipeline.asking.layout import Asked, Progress, ask
from pipeline.asking.start import Starter
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.children import Children
from pipeline.virtual_gpu.build import VirtualGpu
from tests.fake_toolkit import make_toolkit
from tests.workload.recipes import target

FAKE_RANK = Path(__file__).with_name("fake_rank.py")


def installed() -> InstalledServer:
    """This Python, as if it had the tested SGLang."""
    versions = {"sglang": "0.5.23", "flashinfer-python": "0.7.2"}
    return InstalledServer(Path(sys.executable), Path(sysconfig.get_paths()["purelib"]), versions)


@dataclass
class Place:
    """A folder with everything that asking needs."""

    folder: Path
    limit_s: float = 30

    @property
    def toolkit(self) -> Toolkit:
        home = self.folder / "cuda"
        made = home if home.exists() else make_toolkit(home).home
        return Toolkit(made / "bin" / "nvcc", made, "nvcc of the tests, release 13.0\n", "the tests")

    @property
    def starter(self) -> Starter:
        gpu = VirtualGpu(self.folder / "gpu", target())
        cache_dir = self.folder / "out" / "sglang"
        return Starter(installed(), gpu, self.toolkit, Children(), cache_dir, self.limit_s, FAKE_RANK)

    @property
    def progress(self) -> Progress:
        return Progress(self.folder / "scratch", lambda done, total: None)

    def ask(self, *arguments: str, variants: dict[str, list[str]] | None = None) -> Asked:
        """Ask the fake server, over a DeepGEMM cache of its own."""
        stubs = self.folder / "stubs"
        ways = variants or {"as configured": list(arguments)}
        return ask(self.starter, ways, {"SGLANG_DG_CACHE_DIR": str(stubs)}, self.progress)
