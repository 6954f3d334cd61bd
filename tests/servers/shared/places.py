"""A starter whose server is the fake rank, on a virtual GPU that is never loaded."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.children import Children
from pipeline.places import Places
from pipeline.servers.shared.answer import ServerAnswer
from pipeline.servers.shared.caches import Caches
from pipeline.servers.shared.flashinfer_provider import MODULES
from pipeline.servers.shared.inquiry import Inquiry
from pipeline.servers.shared.installed import InstalledServer
from pipeline.servers.shared.start import Starter
from pipeline.virtual_gpu.build import VirtualGpu
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel
from tests.fake_toolkit import make_toolkit
from tests.servers.recipes import target

FAKE_RANK = Path(__file__).with_name("fake_rank.py")
DEEP_GEMM_VARIABLE = "FAKE_DG_CACHE_DIR"


@dataclass(frozen=True, slots=True)
class FakeAskable:
    """How the fake rank is started. Its names are its own: shared code that named a real server would fail."""

    distributions: tuple[str, ...] = ("fake-server", "flashinfer-python")
    tested: tuple[int, int, int] = (1, 2, 3)
    requirements: str = "requirements-fake.txt"
    script: Path = FAKE_RANK
    announced_kernels: frozenset[str] = frozenset({"GEMM_NT_F8F8BF16"})
    caches: Caches = Caches(
        folder="fake",
        patterns={"flashinfer": MODULES, "triton": "triton/*/*.cubin"},
        variables={"FAKE_CACHE_DIR": "."},
    )
    variable_prefix: str = "FAKE_"

    def variants(self, flags: Any, parallel: Parallel, checkpoint: Path) -> dict[str, list[str]]:
        return {"as configured": [str(checkpoint)]}

    def variables(self, model: Model, flags: Any, parallel: Parallel) -> dict[str, str]:
        return {}

    def without_peers(self, virtual_gpu: Path) -> Mapping[str, str]:
        return {"FAKE_NCCL": str(virtual_gpu / "libvnccl.so")}


def installed() -> InstalledServer:
    """This Python, as if it had the fake server."""
    versions: dict[str, str | None] = {"fake-server": "1.2.3", "flashinfer-python": "0.7.2"}
    return InstalledServer(Path(sys.executable), Path(sysconfig.get_paths()["purelib"]), "1.2.3", versions)


def ignore_progress(done: int, total: int) -> None:
    """Nobody looks."""


ANSWER = ServerAnswer(
    stub_cache=Path(),
    starts=("one",),
    problems={},
    compiled={},
    entries={},
    cute_dsl=[],
    autotune_keys=[],
    seconds=1.0,
    peak_bytes=1,
    tokens_answered=1,
    faults=(),
)


def answer(**changes: Any) -> ServerAnswer:
    """What a server answered that asked for nothing, with these changes."""
    return replace(ANSWER, **changes)


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
    def places(self) -> Places:
        return Places(output=self.folder / "out", store=self.folder / "store")

    @property
    def starter(self) -> Starter:
        askable = FakeAskable()
        return Starter(
            askable=askable,
            server=installed(),
            deep_gemm_variable=DEEP_GEMM_VARIABLE,
            gpu=VirtualGpu(self.folder / "gpu", target()),
            toolkit=self.toolkit,
            children=Children(),
            cache_dir=self.places.output / askable.caches.folder,
            limit_s=self.limit_s,
        )

    def inquiry(self, *arguments: str, variants: Mapping[str, Sequence[str]] | None = None) -> Inquiry:
        """The fake server with these arguments, or in these variants."""
        checkpoint = self.folder / "checkpoint"
        checkpoint.mkdir(exist_ok=True)
        return Inquiry(
            starter=self.starter,
            variants=variants or {"as configured": list(arguments)},
            variables={},
            checkpoint=checkpoint,
            scratch_dir=self.places.scratch,
        )

    def ask(self, *arguments: str, variants: Mapping[str, Sequence[str]] | None = None) -> ServerAnswer:
        """Ask the fake server, over a DeepGEMM cache of its own."""
        return self.inquiry(*arguments, variants=variants).ask(self.folder / "stubs", ignore_progress)
