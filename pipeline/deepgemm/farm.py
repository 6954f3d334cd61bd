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

from pipeline.arithmetic import ceil_div, round_up
from pipeline.deepgemm.compiler import Nvcc, Source
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
# A killed run may lose a whole group; 16 kernels together cost no less for each than 8 do.
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
        work = _Work(self, {source.key: self._digest(source) for source in sources})
        missing = [source for source in sources if not work.reuse(source)]
        waiting = deque(group_sources(missing, self.num_workers))

        def compile_waiting() -> None:
            while True:
                with work.lock:
                    if not waiting:
                        return
                    group = waiting.popleft()
                if busy := work.compile_group(group):
                    with work.lock:
                        waiting.append(busy)
                    self.children.pause(WAIT_FOR_OTHER_RUN_S)
                on_progress(work.compiled)

        with ThreadPoolExecutor(self.num_workers, thread_name_prefix="farm") as pool:
            for future in [pool.submit(compile_waiting) for _ in range(self.num_workers)]:
                future.result()
        work.compiled.wall_s = time.monotonic() - started_s
        return work.compiled

    def _digest(self, source: Source) -> str:
        return kernel_digest(source.text, source.arguments, self.toolkit.version_text)


@dataclass(frozen=True, slots=True)
class _Work:
    """What the workers of one `compile` share; `compiled` is written under the lock."""

    farm: Farm
    digests: dict[str, str]
    """Each key's place in the store."""
    compiled: Compiled = field(default_factory=Compiled)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reuse(self, source: Source) -> bool:
        """Whether the store has a good cubin, which is then taken."""
        cubin = self.farm.store.find(self.digests[source.key])
        if cubin is None or check_cubin(cubin, self.farm.sm) is not None:
            return False
        with self.lock:
            self.compiled.num_reused += 1
            self.compiled.cubins[source.key] = cubin
        return True

    def compile_group(self, group: Sequence[Source]) -> list[Source]:
        """Build what the store lacks; returns what another run, or a key of the same content, is compiling now."""
        store = self.farm.store
        busy: list[Source] = []
        missing: list[Source] = []
        with contextlib.ExitStack() as locks:
            for source in group:
                digest = self.digests[source.key]
                if not locks.enter_context(store.try_lock(digest)):
                    busy.append(source)
                elif not self.reuse(source):
                    store.drop(digest)
                    missing.append(source)
            if missing:
                self._build(missing)
        return busy

    def _build(self, sources: Sequence[Source]) -> None:
        farm = self.farm
        with scratch_folder(farm.store.root / "scratch", "nvcc-") as folder:
            nvcc = Nvcc(farm.toolkit, farm.children, folder, farm.sm)
            for source, outcome in nvcc.build(sources):
                # Into the store at once: a run that is killed loses what is being made, not what was made.
                stored = farm.store.put(self.digests[source.key], outcome) if isinstance(outcome, Path) else None
                with self.lock:
                    if stored is None:
                        self.compiled.failed[source.key] = str(outcome)
                    else:
                        self.compiled.num_compiled += 1
                        self.compiled.cubins[source.key] = stored
            with self.lock:
                self.compiled.cpu_s += nvcc.cpu_s


def group_sources(sources: Sequence[Source], num_workers: int) -> list[list[Source]]:
    """Kernels that one compiler call builds: same options and headers, at most MAX_GROUP, in waves of equal groups.

    A source that is not written as DeepGEMM writes them is a group of its own.
    """
    by_kind: dict[tuple[str, ...], list[Source]] = {}
    for number, source in enumerate(sources):
        # Two of DeepGEMM's headers declare one name differently and do not go together.
        kind = (*includes_of(source.text), *source.options) if kernel_of(source.text) else (str(number),)
        by_kind.setdefault(kind, []).append(source)
    num_groups = round_up(ceil_div(len(sources), MAX_GROUP), num_workers)
    groups: list[list[Source]] = []
    for members in by_kind.values():
        share = min(len(members), max(ceil_div(len(members), MAX_GROUP), num_groups * len(members) // len(sources)))
        groups += [members[start::share] for start in range(share)]
    return groups


def default_workers() -> int:
    """As many compilers as there are cores, as far as the free memory allows; at least one."""
    return max(1, min(num_cores(), available_bytes() // BYTES_PER_COMPILER))
