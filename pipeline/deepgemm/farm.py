"""Compile discovered kernels with the real nvcc, in parallel, each at most once on a machine."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.deepgemm.cubin import check_cubin
from pipeline.deepgemm.store import Store, kernel_digest
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.children import Children
from pipeline.engine.host import available_bytes, num_cores
from pipeline.engine.scratch import scratch_folder

# One nvcc with its cicc and ptxas peaks below this on the largest DeepGEMM kernels.
BYTES_PER_COMPILER = 1 << 30
WAIT_FOR_OTHER_RUN_S = 0.05


@dataclass(frozen=True, slots=True)
class Source:
    """A kernel to compile: its key, its source text and the arguments DeepGEMM gave its compiler."""

    key: str
    text: str
    arguments: tuple[str, ...]


@dataclass(slots=True)
class Compiled:
    """What the farm did; `cubins` maps every key that has one to its file in the store."""

    cubins: dict[str, Path] = field(default_factory=dict[str, Path])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    num_compiled: int = 0
    num_reused: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Farm:
    """The parallel compilers of one run."""

    toolkit: Toolkit
    store: Store
    children: Children
    num_workers: int
    sm: int

    def compile(self, sources: Sequence[Source], on_progress: Callable[[Compiled], None]) -> Compiled:
        """Bring a cubin of every source into the store; one that nvcc rejects does not stop the rest."""
        started_s = time.monotonic()
        done, lock = Compiled(), threading.Lock()
        waiting = deque(group_sources(sources))

        def work() -> None:
            while True:
                with lock:
                    if not waiting:
                        return
                    group = waiting.popleft()
                finished = self._compile_group(group, done, lock)
                if not finished:
                    with lock:
                        waiting.append(group)
                    self.children.pause(WAIT_FOR_OTHER_RUN_S)
                on_progress(done)

        with ThreadPoolExecutor(self.num_workers, thread_name_prefix="farm") as pool:
            for future in [pool.submit(work) for _ in range(self.num_workers)]:
                future.result()
        done.wall_s = time.monotonic() - started_s
        return done

    def _compile_group(self, group: Sequence[Source], done: Compiled, lock: threading.Lock) -> bool:
        """Whether the group is finished; False when another run holds one of its kernels."""
        finished = [self._compile_one(source, done, lock) for source in group]
        return all(finished)

    def _compile_one(self, source: Source, done: Compiled, lock: threading.Lock) -> bool:
        digest = kernel_digest(source.text, source.arguments, self.toolkit.version_text)
        with self.store.try_lock(digest) as mine:
            if not mine:
                return False
            cubin = self.store.find(digest)
            if cubin is not None and check_cubin(cubin, self.sm) is None:
                with lock:
                    done.num_reused += 1
                    done.cubins[source.key] = cubin
                return True
            self.store.drop(digest)
            built, message, cpu_s = self._nvcc(source, digest)
        with lock:
            done.cpu_s += cpu_s
            if built is None:
                done.failed[source.key] = message
            else:
                done.num_compiled += 1
                done.cubins[source.key] = built
        return True

    def _nvcc(self, source: Source, digest: str) -> tuple[Path | None, str, float]:
        """(cubin in the store or None, nvcc's message, CPU seconds)."""
        with scratch_folder(self.store.root / "scratch", "nvcc-") as folder:
            (folder / "kernel.cu").write_text(source.text)
            command = [str(self.toolkit.nvcc), *relocated(source.arguments, folder)]
            log = folder / "log"
            with log.open("w") as output:
                # Temporary files of a compiler that is killed go with the folder.
                environment = {**os.environ, "TMPDIR": str(folder)}
                child = self.children.start(command, cwd=folder, env=environment, stdout=output, stderr=output)
                ended = self.children.wait(child)
            message = log.read_text(errors="replace").strip()
            built = folder / "kernel.cubin"
            if ended.returncode != 0:
                return None, f"nvcc exit {ended.returncode}: {message}", ended.cpu_s
            if (wrong := check_cubin(built, self.sm)) is not None:
                return None, f"nvcc succeeded but {wrong}", ended.cpu_s
            return self.store.put(digest, built), message, ended.cpu_s


def group_sources(sources: Sequence[Source]) -> list[list[Source]]:
    """Kernels that one compiler call builds. Groups of one for now: design.md section 7 has what larger ones gain."""
    return [[source] for source in sources]


def relocated(arguments: Sequence[str], folder: Path) -> list[str]:
    """The recorded arguments with input and output in `folder`."""
    moved: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument in ("-o", "--output-file"):
            next(rest, None)
            moved += [argument, str(folder / "kernel.cubin")]
        else:
            moved.append(str(folder / "kernel.cu") if argument.endswith(".cu") else argument)
    return moved


def default_workers() -> int:
    """Half as many compilers again as there are cores (kernels take equally long, so fewer would end in a wave that
    leaves cores idle), as far as the free memory allows; at least one.
    """
    return max(1, min(num_cores() * 3 // 2, available_bytes() // BYTES_PER_COMPILER))
