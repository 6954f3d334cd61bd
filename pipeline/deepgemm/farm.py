"""Compile discovered kernels with the real nvcc, in parallel, each at most once on a machine."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.buffers.alignment import round_up
from pipeline.deepgemm.compiler import Compiler, Source
from pipeline.deepgemm.cubin import check_cubin
from pipeline.deepgemm.store import Store, kernel_digest
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.deepgemm.translation_unit import includes_of, kernel_of
from pipeline.engine.children import Children
from pipeline.engine.host import available_bytes, num_cores
from pipeline.engine.scratch import scratch_folder

# One nvcc with its cicc and ptxas peaks below this on the largest DeepGEMM kernels.
BYTES_PER_COMPILER = 1 << 30
WAIT_FOR_OTHER_RUN_S = 0.05
# What one killed run may lose; 16 kernels together cost no less for each than 8 do.
MAX_GROUP = 8


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
        done = Compiled()
        lock = threading.Lock()
        missing = [source for source in sources if not self._reuse(source, self._digest(source), done, lock)]
        waiting = deque(group_sources(missing, self.num_workers))

        def work() -> None:
            while True:
                with lock:
                    if not waiting:
                        return
                    group = waiting.popleft()
                if busy := self._compile_group(group, done, lock):
                    with lock:
                        waiting.append(busy)
                    self.children.pause(WAIT_FOR_OTHER_RUN_S)
                on_progress(done)

        with ThreadPoolExecutor(self.num_workers, thread_name_prefix="farm") as pool:
            for future in [pool.submit(work) for _ in range(self.num_workers)]:
                future.result()
        done.wall_s = time.monotonic() - started_s
        return done

    def _compile_group(self, group: Sequence[Source], done: Compiled, lock: threading.Lock) -> list[Source]:
        """Build what the store lacks; returns the kernels that another run, or another key's twin, is at."""
        digests: dict[str, str] = {}
        busy: list[Source] = []
        missing: list[Source] = []
        with contextlib.ExitStack() as locks:
            for source in group:
                digest = digests[source.key] = self._digest(source)
                if not locks.enter_context(self.store.try_lock(digest)):
                    busy.append(source)
                elif not self._reuse(source, digest, done, lock):
                    self.store.drop(digest)
                    missing.append(source)
            if missing:
                self._build(missing, digests, done, lock)
        return busy

    def _digest(self, source: Source) -> str:
        return kernel_digest(source.text, source.arguments, self.toolkit.version_text)

    def _reuse(self, source: Source, digest: str, done: Compiled, lock: threading.Lock) -> bool:
        cubin = self.store.find(digest)
        if cubin is None or check_cubin(cubin, self.sm) is not None:
            return False
        with lock:
            done.num_reused += 1
            done.cubins[source.key] = cubin
        return True

    def _build(self, sources: Sequence[Source], digests: dict[str, str], done: Compiled, lock: threading.Lock) -> None:
        with scratch_folder(self.store.root / "scratch", "nvcc-") as folder:
            compiler = Compiler(self.toolkit, self.children, folder, self.sm)
            for source, outcome in compiler.build(sources):
                # Into the store at once: a run that is killed loses what is being made, not what was made.
                kept = self.store.put(digests[source.key], outcome) if isinstance(outcome, Path) else None
                with lock:
                    if kept is None:
                        done.failed[source.key] = str(outcome)
                    else:
                        done.num_compiled += 1
                        done.cubins[source.key] = kept
            with lock:
                done.cpu_s += compiler.cpu_s


def group_sources(sources: Sequence[Source], num_workers: int) -> list[list[Source]]:
    """Kernels that one compiler call builds: same options and headers, at most MAX_GROUP, in waves of equal groups.

    A source that is not written as DeepGEMM writes them is a group of its own.
    """
    alike: dict[tuple[str, ...], list[Source]] = {}
    for number, source in enumerate(sources):
        # Two of DeepGEMM's headers declare one name differently and do not go together.
        kind = (*includes_of(source.text), *source.options) if kernel_of(source.text) else (str(number),)
        alike.setdefault(kind, []).append(source)
    num_groups = round_up(-(-len(sources) // MAX_GROUP), num_workers)
    groups: list[list[Source]] = []
    for members in alike.values():
        share = min(len(members), max(-(-len(members) // MAX_GROUP), num_groups * len(members) // len(sources)))
        groups += [members[start::share] for start in range(share)]
    return groups


def default_workers() -> int:
    """As many compilers as there are cores, as far as the free memory allows; at least one."""
    return max(1, min(num_cores(), available_bytes() // BYTES_PER_COMPILER))
