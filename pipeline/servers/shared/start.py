"""Start one rank of the installed server on the virtual GPU and read what it asks its compilers for."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.deepgemm.discovery import inherited_environment, put_stand_in
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.children import Children
from pipeline.engine.host import num_cores
from pipeline.engine.jobs import OnProgress, telling_lines
from pipeline.servers.protocol import AskableServer
from pipeline.servers.shared.caches import INSTEAD_OF_CUTE
from pipeline.servers.shared.installed import InstalledServer, build_environment
from pipeline.virtual_gpu.build import VirtualGpu

LAST_LINES = 50
POLL_S = 0.5
# The child is killed this long after its limit; at the limit faulthandler prints every thread's stack.
GRACE_S = 15
# The first words of faulthandler's line above the stacks.
TIMEOUT_LINE = "Timeout ("


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the server: which pipeline rank, under which arguments."""

    name: str
    pp_rank: int
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AskedProblem:
    """A DeepGEMM problem as the server's log names it."""

    kernel: str
    n: int
    k: int
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StartReport:
    """What one start left behind."""

    problems: tuple[AskedProblem, ...]
    cute_dsl: tuple[str, ...]
    """Kernels that CuTe-DSL compiled; it keeps them in memory only."""
    autotune_keys: tuple[str, ...]
    """What FlashInfer would have tuned: operation and shapes."""
    num_pipeline_ranks: int
    tokens_answered: int
    seconds: float
    peak_bytes: int | None
    finished: bool
    refused: bool
    timed_out: bool
    unanswered: tuple[str, ...]
    """Functions that the virtual GPU does not answer."""
    lines: tuple[str, ...]
    """The first line with an error, and the last of what the server printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """How one rank of the server is started on this machine."""

    askable: AskableServer
    server: InstalledServer
    deep_gemm_variable: str
    """The environment variable that points the server at DeepGEMM's cache."""
    gpu: VirtualGpu
    toolkit: Toolkit
    children: Children
    cache_dir: Path
    """The server's caches, except DeepGEMM's."""
    limit_s: float
    """Seconds that one start may take."""

    def run(self, start: Start, folder: Path, variables: Mapping[str, str], on_progress: OnProgress) -> StartReport:
        """Start the rank in a folder of its own and wait for its end; `variables` win over `environment`."""
        job = folder / "job.json"
        events = folder / "events.jsonl"
        output = folder / "server.log"
        content = {"arguments": start.arguments, "pp_rank": start.pp_rank, "limit_s": self.limit_s}
        job.write_text(json.dumps(content))
        events.touch()
        limit = ["timeout", "--signal=KILL", str(self.limit_s + GRACE_S)]
        command = [*limit, str(self.server.python), str(self.askable.script), str(job), str(events)]
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
        return read_report(events, output)

    def environment(self, folder: Path) -> dict[str, str]:
        """Variables of a server whose DeepGEMM compiler is the stand-in and whose other compilers are real."""
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
            **self.askable.caches.environment(self.cache_dir),
            **self.askable.without_peers(self.gpu.folder),
            **put_stand_in(folder, self.toolkit),
        }


def read_report(events: Path, output: Path) -> StartReport:
    """Read the events of a start and the end of its output."""
    lines = [line for line in output.read_text(errors="replace").splitlines() if line.strip()]
    events_of: dict[str, list[dict[str, Any]]] = {}
    seconds = 0.0
    for event in map(json.loads, events.read_text().splitlines()):
        events_of.setdefault(event["event"], []).append(event)
        seconds = event["s"]
    problems = [AskedProblem(e["kernel"], e["n"], e["k"], e["groups"]) for e in events_of.get("problem", [])]
    decode_batches = [e for e in events_of.get("batch", []) if e["mode"] == "DECODE"]
    return StartReport(
        problems=tuple(dict.fromkeys(problems)),
        cute_dsl=tuple(e["kernel"] for e in events_of.get("cute_dsl", [])),
        autotune_keys=tuple(sorted({e["key"] for e in events_of.get("autotune", [])})),
        num_pipeline_ranks=next((e["pp"] for e in events_of.get("layout", [])), 1),
        tokens_answered=sum(e["requests"] for e in decode_batches),
        seconds=seconds,
        peak_bytes=next((e["peak_bytes"] for e in events_of.get("done", [])), None),
        finished="done" in events_of,
        timed_out=any(line.startswith(TIMEOUT_LINE) for line in lines),
        refused="refused" in events_of,
        unanswered=tuple(sorted({line.split()[2] for line in lines if _is_unanswered(line)})),
        lines=tuple(telling_lines(lines, LAST_LINES)),
    )


def _is_unanswered(line: str) -> bool:
    return line.startswith("virtual GPU:") and "is not answered" in line


def _relay(events: Path, on_progress: OnProgress, ended: threading.Event) -> None:
    with events.open() as lines:
        while not ended.is_set():
            for line in lines:
                event = json.loads(line) if line.endswith("\n") else {}
                if event.get("event") == "wave":
                    on_progress(event["done"], event["total"])
            ended.wait(POLL_S)
