"""Learn which kernel keys the problems need, by running the real deep_gemm on the virtual GPU over every M."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pipeline.deepgemm.launch_spec import problems_json
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.children import Children
from pipeline.engine.errors import StageError
from pipeline.engine.host import num_cores
from pipeline.engine.jobs import Answer, Job, OnProgress
from pipeline.engine.scratch import scratch_folder
from pipeline.servers.shared.problems import Problem
from pipeline.target import Target

PROJECT_ROOT = Path(__file__).parents[2]
STAND_IN = Path(__file__).with_name("nvcc_stand_in")
# Discovery's operands are larger than any card; only the address space must hold them.
VIRTUAL_MEMORY_BYTES = 1 << 44
SCRATCH_PREFIX = "discovery-"
MIN_M_PER_SHARD = 4096
MAX_SHARDS = 16


@dataclass(frozen=True, slots=True)
class ProblemKernels:
    """The kernels of one problem as runs (first M, last M, keys)."""

    runs: tuple[tuple[int, int, tuple[str, ...]], ...]
    launched: int
    unavailable: str | None = None
    """Why the installed deep_gemm could not launch it at all."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Distinct kernel keys in order of first use."""
        return tuple(dict.fromkeys(key for _, _, keys in self.runs for key in keys))


@dataclass(frozen=True, slots=True)
class Discovery:
    """The kernels of every problem, in the order of the problems given."""

    problems: tuple[ProblemKernels, ...]
    seconds: float
    peak_bytes: int

    @property
    def keys(self) -> tuple[str, ...]:
        """Distinct kernel keys of all problems."""
        return tuple(dict.fromkeys(key for problem in self.problems for key in problem.keys))

    @property
    def unavailable(self) -> tuple[str, ...]:
        """What the installed deep_gemm lacks."""
        return tuple(dict.fromkeys(problem.unavailable for problem in self.problems if problem.unavailable))

    @property
    def num_launched(self) -> int:
        """How many (problem, M) pairs were launched."""
        return sum(problem.launched for problem in self.problems)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        problems = [
            {"runs": problem.runs, "launched": problem.launched, "unavailable": problem.unavailable}
            for problem in self.problems
        ]
        return {"problems": problems, "seconds": self.seconds, "peak_bytes": self.peak_bytes}

    @classmethod
    def from_json(cls, outcome: dict[str, Any]) -> Discovery:
        """Read what the worker wrote."""
        problems = tuple(
            ProblemKernels(
                runs=tuple((first, last, tuple(keys)) for first, last, keys in problem["runs"]),
                launched=problem["launched"],
                unavailable=problem.get("unavailable"),
            )
            for problem in outcome["problems"]
        )
        return cls(problems=problems, seconds=outcome["seconds"], peak_bytes=outcome["peak_bytes"])


class Gpu(Protocol):
    """What a worker runs on: the virtual GPU, or the real one."""

    @property
    def target(self) -> Target:
        """What it is."""
        ...

    def environment(self) -> dict[str, str]:
        """Variables to add to the worker's environment."""
        ...


@dataclass(frozen=True, slots=True)
class Discoverer:
    """Runs the worker; everything it needs to know about this machine and this run."""

    gpu: Gpu
    toolkit: Toolkit
    children: Children
    scratch_dir: Path
    """Where working folders are made; it must allow execution (the stand-in compiler is started from there)."""
    compiler: Path | None = None
    """What deep_gemm may call to compile; None means the stand-in. The real one compiles as a server does."""
    deep_gemm: str | None = None
    """The folder that holds the deep_gemm to ask; None means the installed one."""
    max_workers: int = MAX_SHARDS
    """Most workers side by side; a server's own sweep is one."""

    def record(self, problems: Sequence[Problem], cache_dir: Path, on_progress: OnProgress) -> Discovery:
        """Launch everything; keys that `cache_dir` lacks are left there with stub cubins."""
        with scratch_folder(self.scratch_dir, SCRATCH_PREFIX) as folder:
            return self._run(problems, folder, cache_dir, on_progress)

    def check(
        self, problems: Sequence[Problem], published: Path, on_progress: OnProgress
    ) -> tuple[Discovery, tuple[str, ...]]:
        """Launch everything over a published cache, with no compiler within reach.

        Returns what was launched and the keys that the cache lacks: those for which DeepGEMM called its compiler,
        where only the stand-in is. The published directory is read, never written.
        """
        with scratch_folder(self.scratch_dir, SCRATCH_PREFIX) as folder:
            linked = link_cache(published, folder)
            discovery = self._run(problems, folder, linked, on_progress)
            entries = (linked / "cache").iterdir()
            return discovery, tuple(sorted(entry.name for entry in entries if not entry.is_symlink()))

    def _run(self, problems: Sequence[Problem], folder: Path, cache_dir: Path, on_progress: OnProgress) -> Discovery:
        started_s = time.monotonic()
        shards = split_evenly(problems, num_shards(problems, min(num_cores(), self.max_workers)))
        content = {"shards": [problems_json([problems[index] for index in shard]) for shard in shards]}
        job = Job("pipeline.deepgemm.worker", content, folder, self.environment(folder, cache_dir))
        answer = job.run(self.children, on_progress)
        if answer.result is None:
            raise StageError(_explain(answer))
        parts = [Discovery.from_json(part) for part in answer.result["shards"]]
        kernels_of = {
            index: kernels
            for shard, part in zip(shards, parts, strict=True)
            for index, kernels in zip(shard, part.problems, strict=True)
        }
        return Discovery(
            problems=tuple(kernels_of[index] for index in range(len(problems))),
            seconds=time.monotonic() - started_s,
            peak_bytes=max(part.peak_bytes for part in parts),
        )

    def environment(self, folder: Path, cache_dir: Path) -> dict[str, str]:
        """For a child that runs deep_gemm over `cache_dir` with the stand-in, which is put into `folder`."""
        compiler = {} if self.compiler is None else {"DG_JIT_NVCC_COMPILER": str(self.compiler)}
        return {
            # A DG_ or DJ_ variable of the caller could change the keys; a server started from env.sh has none.
            **inherited_environment("DG_", "DJ_"),
            **self.gpu.environment(),
            "VGPU_MEMORY_BYTES": str(VIRTUAL_MEMORY_BYTES),
            "CUDA_HOME": str(self.toolkit.cuda_home),
            "PYTHONPATH": ":".join(filter(None, [self.deep_gemm, str(PROJECT_ROOT), os.environ.get("PYTHONPATH")])),
            "DG_JIT_CACHE_DIR": str(cache_dir),
            **put_stand_in(folder, self.toolkit),
            **compiler,
            # The worker forks, which a pool of BLAS threads would not survive; nothing here multiplies on the CPU.
            "OPENBLAS_NUM_THREADS": "1",
        }


def put_stand_in(folder: Path, toolkit: Toolkit) -> dict[str, str]:
    """Put the stand-in for `toolkit`'s nvcc into `folder`; the variables with which deep_gemm calls it."""
    version = folder / "nvcc_version"
    stand_in = folder / "nvcc"
    version.write_text(toolkit.version_text)
    shutil.copy(STAND_IN, stand_in)
    stand_in.chmod(0o755)
    return {"DG_JIT_NVCC_COMPILER": str(stand_in), "PREHEAT_NVCC_VERSION": str(version)}


def inherited_environment(*without: str) -> dict[str, str]:
    """This process's variables but those that begin so, and the choice of a GPU that the child does not run on."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    variables.pop("CUDA_VISIBLE_DEVICES", None)
    return variables


def num_shards(problems: Sequence[Problem], cores: int) -> int:
    """How many workers launch side by side: one is forked in about as long as it launches MIN_M_PER_SHARD."""
    total = sum(len(problem.m) for problem in problems)
    return max(1, min(cores, MAX_SHARDS, len(problems), total // MIN_M_PER_SHARD))


def split_evenly(problems: Sequence[Problem], number: int) -> list[list[int]]:
    """Indices of the problems in `number` lists of about equal M counts, the largest problems first."""
    shards: list[list[int]] = [[] for _ in range(number)]
    loads = [0] * number
    for index in sorted(range(len(problems)), key=lambda index: -len(problems[index].m)):
        least = loads.index(min(loads))
        shards[least].append(index)
        loads[least] += len(problems[index].m)
    return shards


def link_cache(published: Path, folder: Path) -> Path:
    """A cache directory under `folder` with a link to each published entry; what is missing is made beside them."""
    entries = folder / "deep_gemm" / "cache"
    entries.mkdir(parents=True)
    for entry in sorted((published / "cache").glob("*")):
        (entries / entry.name).symlink_to(entry.resolve(), target_is_directory=True)
    return entries.parent


def _explain(answer: Answer) -> str:
    unanswered = sorted({line for line in answer.lines if line.startswith("virtual GPU:")})
    shown = "\n".join([*unanswered, answer.last_words])
    return f"discovery ended with code {answer.returncode}; deep_gemm on the virtual GPU said:\n{shown}"
