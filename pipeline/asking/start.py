"""Start one rank of the installed server on the virtual GPU and listen to what it asks for."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pipeline.asking.caches import INSTEAD_OF_CUTE, cache_variables
from pipeline.asking.installed import InstalledServer, build_environment
from pipeline.deepgemm.discovery import inherited_environment, put_stand_in
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.children import Children
from pipeline.engine.host import num_cores
from pipeline.engine.jobs import OnProgress
from pipeline.virtual_gpu.build import VirtualGpu

RANK = Path(__file__).parent / "inside" / "rank.py"
LAST_LINES = 50
POLL_S = 0.5
# faulthandler prints every thread's stack that long before the child is killed.
GRACE_S = 15
UNANSWERED = "is not answered"
# faulthandler's line before the stacks.
TIMED_OUT = "Timeout ("


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the server: which pipeline stage's rank, under which arguments."""

    name: str
    pp_rank: int
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskedProblem:
    """A DeepGEMM problem as the server names it."""

    kernel: str
    n: int
    k: int
    groups: int


@dataclass(frozen=True, slots=True)
class Heard:
    """What one start said."""

    problems: tuple[AskedProblem, ...]
    cute_dsl: tuple[str, ...]
    """Kernels that CuTe-DSL compiled; it keeps them in memory only."""
    autotune_keys: tuple[str, ...]
    """What FlashInfer would have tuned: operation and shapes."""
    num_stages: int
    batches: int
    tokens_answered: int
    seconds: float
    peak_bytes: int | None
    finished: bool
    refused: bool
    timed_out: bool
    unanswered: tuple[str, ...]
    lines: tuple[str, ...]
    """The last of what the server printed."""


@dataclass(frozen=True, slots=True)
class Starter:
    """Everything that a start needs to know about this machine and this run."""

    server: InstalledServer
    gpu: VirtualGpu
    toolkit: Toolkit
    children: Children
    cache_dir: Path
    """SGLANG_CACHE_DIR: all caches but DeepGEMM's."""
    limit_s: float
    script: Path = RANK
    """What starts the rank inside the server's Python."""

    def listen(self, start: Start, folder: Path, variables: Mapping[str, str], on_progress: OnProgress) -> Heard:
        """Start it in `folder`, which is its own, with `variables` over its environment; wait until it has ended."""
        job = folder / "job.json"
        events = folder / "events.jsonl"
        output = folder / "server.log"
        content = {"arguments": start.arguments, "pp_rank": start.pp_rank, "limit_s": self.limit_s}
        job.write_text(json.dumps(content))
        events.touch()
        limit = ["timeout", "--signal=KILL", str(self.limit_s + GRACE_S)]
        command = [*limit, str(self.server.python), str(self.script), str(job), str(events)]
        environment = {**self.environment(folder), **variables}
        ended = threading.Event()
        watcher = threading.Thread(target=_relay, args=(events, on_progress, ended), daemon=True)
        watcher.start()
        try:
            with output.open("w") as log:
                child = self.children.start(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
                self.children.wait(child)
        finally:
            ended.set()
            watcher.join()
        return heard(events, output)

    def environment(self, folder: Path) -> dict[str, str]:
        """For a server whose DeepGEMM compiler is the stand-in and whose other compilers are the real ones."""
        bins = [str(self.server.python.parent), str(self.toolkit.nvcc.parent), os.environ.get("PATH", os.defpath)]
        return {
            **inherited_environment("DG_", "DJ_", "VGPU_", "TRITON_", "FLASHINFER_"),
            **self.gpu.environment(),
            **build_environment(self.server, self.toolkit, folder / "links", self.gpu.folder / "libcuda.so.1"),
            **INSTEAD_OF_CUTE,
            "PATH": ":".join(bins),
            "CUDA_HOME": str(self.toolkit.cuda_home),
            "MAX_JOBS": str(num_cores()),
            # Nothing may come from the user's own caches, or be left there.
            "HOME": str(folder),
            **cache_variables(self.cache_dir),
            "SGLANG_NCCL_SO_PATH": str(self.gpu.folder / "libvnccl.so"),
            # Without peers nobody reads the queue.
            "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "false",
            **put_stand_in(folder, self.toolkit),
        }


def heard(events: Path, output: Path) -> Heard:
    """Read what a start left."""
    said = [json.loads(line) for line in events.read_text().splitlines()]
    problems = [AskedProblem(e["kernel"], e["n"], e["k"], e["groups"]) for e in said if e["event"] == "problem"]
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return Heard(
        problems=tuple(dict.fromkeys(problems)),
        cute_dsl=tuple(e["kernel"] for e in said if e["event"] == "cute_dsl"),
        autotune_keys=tuple(sorted({e["key"] for e in said if e["event"] == "autotune"})),
        num_stages=next((e["pp"] for e in said if e["event"] == "layout"), 1),
        batches=sum(e["event"] == "batch" for e in said),
        tokens_answered=sum(e["requests"] for e in said if e["event"] == "batch" and e["mode"] == "DECODE"),
        seconds=said[-1]["s"] if said else 0.0,
        peak_bytes=next((e["peak_bytes"] for e in said if e["event"] == "done"), None),
        finished=any(e["event"] == "done" for e in said),
        timed_out=any(line.startswith(TIMED_OUT) for line in lines),
        refused=any(e["event"] == "refused" for e in said),
        unanswered=tuple(sorted({line.split()[2] for line in lines if _is_unanswered(line)})),
        lines=tuple(lines[-LAST_LINES:]),
    )


def _is_unanswered(line: str) -> bool:
    return line.startswith("virtual GPU:") and UNANSWERED in line


def _relay(events: Path, on_progress: OnProgress, ended: threading.Event) -> None:
    with events.open() as lines:
        while not ended.is_set():
            for line in lines:
                said = json.loads(line) if line.endswith("\n") else {}
                if said.get("event") == "wave":
                    on_progress(said["done"], said["total"])
            ended.wait(POLL_S)
