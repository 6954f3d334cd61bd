"""What a server's folder implements; docs/add_a_server.md goes through it in order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from pipeline.servers.rules import Rules
from pipeline.servers.shared.caches import Caches
from pipeline.servers.shared.flags import ServerFlags
from pipeline.target import Target
from pipeline.workload.hf_config import Model
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import Parallel


class AskableServer(Protocol):
    """How an installed server is started on the virtual GPU, one rank in each process."""

    @property
    def distributions(self) -> Sequence[str]:
        """Distributions whose versions decide what it compiles; the first is the server itself."""
        ...

    @property
    def tested(self) -> tuple[int, int, int]:
        """The only release that `script` was tested with."""
        ...

    @property
    def requirements(self) -> str:
        """The requirements file that installs this release."""
        ...

    @property
    def script(self) -> Path:
        """The program that starts a rank inside the server's own Python: `script JOB EVENTS`."""
        ...

    @property
    def announced_kernels(self) -> Collection[str]:
        """Kernels of which it logs each problem before the first launch."""
        ...

    @property
    def caches(self) -> Caches:
        """The caches that it fills beside DeepGEMM's."""
        ...

    @property
    def variable_prefix(self) -> str:
        """The prefix of its own environment variables; they decide what it asks for, so they enter the digest."""
        ...

    def variants(self, flags: Any, parallel: Parallel, checkpoint: Path) -> dict[str, list[str]]:
        """The arguments of each way in which it is started, by the name of that way."""
        ...

    def variables(self, model: Model, flags: Any, parallel: Parallel) -> dict[str, str]:
        """Environment variables for options of the recipe that are no arguments of the server."""
        ...

    def without_peers(self, virtual_gpu: Path) -> Mapping[str, str]:
        """Environment variables with which one rank runs alone; `virtual_gpu` is the folder with its libraries."""
        ...


class SupportedServer(Protocol):
    """What the rest of the program uses of one server."""

    @property
    def flags(self) -> type[ServerFlags]:
        """The schema of `server.*`."""
        ...

    @property
    def deep_gemm_variable(self) -> str:
        """The environment variable that points it at DeepGEMM's cache."""
        ...

    @property
    def sweep_switch(self) -> tuple[str, str]:
        """The environment variable, and its value, that keeps it from its own sweep at start."""
        ...

    @property
    def askable(self) -> AskableServer | None:
        """How discovery=server starts it; None for a server that only has rules."""
        ...

    def rules(self, facts: ModelFacts, parallel: Parallel, flags: Any, target: Target) -> Rules:
        """Its rules for one deployment."""
        ...
