"""Prove a published cache complete: every M again without a compiler, and on the target GPU the kernels themselves."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.deepgemm.discovery import Discoverer, Discovery
from pipeline.deepgemm.hardware import check_on_gpu, discover_on_real_gpu, gpu_mismatch
from pipeline.engine.errors import HostError
from pipeline.engine.events import Reporter
from pipeline.figures import VerifyFigures
from pipeline.servers.shared.problems import Problem


@dataclass(frozen=True, slots=True)
class Coverage:
    """One proof; what it measures goes into `figures`."""

    discoverer: Discoverer
    warm_cache: Path
    figures: VerifyFigures
    on_progress: Reporter

    def check(self, problems: Sequence[Problem], *, on_real_gpu: bool) -> tuple[list[str], dict[str, int]]:
        """(faults, number of kernel keys of each problem by its name).

        `on_real_gpu`: discovery runs on this machine's GPU too; HostError when that is not the target's like.
        """
        discovery, missing = self.discoverer.check(problems, self.warm_cache, self.on_progress.counting("M launched"))
        self.figures.coverage_m_values = discovery.num_launched
        self.figures.coverage_compiles = len(missing)
        self.figures.seconds_coverage = round(discovery.seconds, 3)
        faults = [missing_line(key, problems, discovery) for key in missing]
        mismatch = gpu_mismatch(self.discoverer.gpu.target)
        if mismatch is None:
            faults += self._execute(problems, discovery)
        else:
            self.figures.hardware_skipped = mismatch
        if on_real_gpu:
            if mismatch is not None:
                raise HostError(
                    f"verify.discover_on=real needs the target GPU: {mismatch}; use verify.discover_on=virtual"
                )
            faults += self._compare_discoveries(problems, discovery)
        num_keys = [len(kernels.keys) for kernels in discovery.problems]
        return faults, {problem.name: number for problem, number in zip(problems, num_keys, strict=True)}

    def _execute(self, problems: Sequence[Problem], discovery: Discovery) -> list[str]:
        on_progress = self.on_progress.counting("kernels executed")
        checked = check_on_gpu(self.discoverer, problems, discovery, self.warm_cache, on_progress)
        self.figures.cubins_loaded = checked.num_loaded
        self.figures.numerics_checked = checked.num_executed
        self.figures.without_reference = len(discovery.keys) - checked.num_executed
        self.figures.max_relative_error = checked.max_relative_error
        return list(checked.faults)

    def _compare_discoveries(self, problems: Sequence[Problem], discovery: Discovery) -> list[str]:
        started_s = time.monotonic()
        real_keys = discover_on_real_gpu(self.discoverer, problems, self.on_progress.counting("M on the GPU"))
        self.figures.seconds_real_discovery = round(time.monotonic() - started_s, 3)
        self.figures.real_keys = len(real_keys)
        return key_differences(set(discovery.keys), real_keys)


def key_differences(virtual_keys: set[str], real_keys: set[str]) -> list[str]:
    """One fault for each key that only one of the two GPUs needs."""
    only_real = [f"{key}: needed on the real GPU, not on the virtual one" for key in sorted(real_keys - virtual_keys)]
    only_virtual = [
        f"{key}: needed on the virtual GPU, not on the real one" for key in sorted(virtual_keys - real_keys)
    ]
    return only_real + only_virtual


def missing_line(key: str, problems: Sequence[Problem], discovery: Discovery) -> str:
    """Which problem would compile this key at which M."""
    for problem, kernels in zip(problems, discovery.problems, strict=True):
        for first, last, keys in kernels.runs:
            if key in keys:
                return f"{key} is not in the cache: {problem.name} would compile it at M {first} to {last}"
    return f"{key} is not in the cache"
