"""A recipe: the typed form of everything that conf/ can say, except the stages' own options."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from pipeline.buffers.decode_set import AdapterKind
from pipeline.engine.runner import OnError
from pipeline.places import Places
from pipeline.servers.shared.flags import ServerFlags
from pipeline.target import Target
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel


class Mode(Enum):
    """What to do with a recipe."""

    run = "run"
    """Bake, verify and export."""
    plan = "plan"
    """Print what would be done and why; touch nothing."""
    verify = "verify"
    """Check an existing output again: short for the pipeline of that name."""


class DiscoverySource(Enum):
    """Who says what a server will compile."""

    rules = "rules"
    """The rules of pipeline/servers: seconds, no server installed."""
    server = "server"
    """The installed server, started on the virtual GPU: every JIT cache that it has. Needs no rules."""
    both = "both"
    """Both lists are baked, and the report holds what only one of them names; what the rules lack is exit code 6."""

    @property
    def asks_server(self) -> bool:
        """Whether the server is started."""
        return self is not DiscoverySource.rules

    @property
    def uses_rules(self) -> bool:
        """Whether the rules' problems are baked."""
        return self is not DiscoverySource.server


class DeviceKind(Enum):
    """Where dummy runs execute."""

    cpu = "cpu"
    """Reference kernels in plain torch."""
    cuda = "cuda"
    """DeepGEMM, FlashInfer and Triton on this machine's GPU."""


@dataclass(kw_only=True, slots=True)
class Device:
    """The device of the dummy runs, here and now; not the target."""

    kind: DeviceKind = DeviceKind.cpu
    """Which kernels run."""
    memory_limit_bytes: int | None = None
    """Most bytes the arena may take; None means what is free."""


@dataclass(kw_only=True, slots=True)
class ToolkitChoice:
    """Which CUDA compiler to use."""

    cuda_home: str | None = None
    """A toolkit's folder; None means CUDA_HOME, else nvcc on PATH, else the nvidia-cuda-nvcc wheel."""
    deep_gemm: str | None = None
    """The folder that holds the deep_gemm to ask, for vLLM its own .../vllm/third_party; None: the installed one."""


@dataclass(kw_only=True, slots=True)
class Output:
    """Where results go."""

    dir: str = ""
    """The folder a server is pointed at."""

    def config_errors(self) -> list[str]:
        """A path that DeepGEMM would take for several: it splits its cache directory at colons."""
        return [f"output.dir must not contain ':', got {self.dir!r}"] if ":" in self.dir else []


@dataclass(kw_only=True, slots=True)
class StoreChoice:
    """Where compiled kernels are kept between recipes."""

    dir: str = ""
    """The store's folder; every recipe of a machine can share one."""


@dataclass(kw_only=True, slots=True)
class Node:
    """A stage's place in the graph."""

    needs: list[str] = field(default_factory=list[str])
    """Stages that must have ended before."""


@dataclass(kw_only=True, slots=True)
class Pipeline:
    """Which stages run, and after which."""

    name: str = ""
    """The file's name in conf/pipeline."""
    stages: dict[str, Node] = field(default_factory=dict[str, Node])
    """Stage name to its needs."""


@dataclass(kw_only=True)
class Recipe:
    """One composed config; the stages' options are added to it as further fields (engine/config.py)."""

    mode: Mode = Mode.run
    """run, plan or verify."""
    on_error: OnError = OnError.finish
    """Whether stages that do not depend on a failed one go on."""
    discovery: DiscoverySource = DiscoverySource.rules
    """rules, server or both: who says what the server will compile."""
    model: Model = field(default_factory=Model)
    """The checkpoint."""
    parallel: Parallel = field(default_factory=Parallel)
    """The layout over ranks."""
    server: ServerFlags = field(default_factory=ServerFlags)
    """The server, its version and the flags that change shapes or kernels."""
    target: Target = field(default_factory=Target)
    """The GPU that will serve."""
    device: Device = field(default_factory=Device)
    """Where dummy runs execute."""
    adapter: AdapterKind = AdapterKind.auto
    """Whose buffers dummy runs use: auto, decode_graph or eager."""
    toolkit: ToolkitChoice = field(default_factory=ToolkitChoice)
    """Which CUDA compiler."""
    output: Output = field(default_factory=Output)
    """Where results go."""
    store: StoreChoice = field(default_factory=StoreChoice)
    """Where compiled kernels are kept."""
    pipeline: Pipeline = field(default_factory=Pipeline)
    """The graph of stages."""

    @property
    def places(self) -> Places:
        """Its folders, resolved from the current one."""
        return Places(output=Path(self.output.dir).absolute(), store=Path(self.store.dir).absolute())

    @property
    def name(self) -> str:
        """model-parallel-server-target."""
        return f"{self.model.name}-{self.parallel.name}-{self.server.name}-{self.target.name}"
