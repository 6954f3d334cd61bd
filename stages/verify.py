"""Believe nothing: launch every M again with no compiler in reach, check every cubin, and check the buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.deepgemm.cache import cache_faults
from pipeline.deepgemm.discovery import Discovery
from pipeline.engine.context import View
from pipeline.engine.errors import VerifyError
from pipeline.engine.events import Reporter
from pipeline.engine.stage import Resource, Result, Stage
from pipeline.slots import (
    ALLOCATED,
    BAKED,
    BATCH,
    EVENTS,
    FORWARD,
    PROOF,
    RECIPE,
    RESERVED,
    WORKLOAD,
    ForwardResult,
    Proof,
    Reserved,
)
from pipeline.workload.problems import Problem

FAULTS_SHOWN = 10
# Stages that work in the arena; plan comes before it, sweep and export never touch the device.
WITHOUT_ALLOCATION = ("adapter", "align", "autotune")


@dataclass(kw_only=True)
class Verify(Stage):
    """Coverage, cubins and buffers; what needs the target GPU is null in the report when there is none."""

    reads = (RECIPE, EVENTS, ALLOCATED, WORKLOAD, BAKED, RESERVED, BATCH, FORWARD)
    writes = (PROOF,)
    resource = Resource.DEVICE
    section = "verify"
    figures = (
        "coverage_m_values",
        "coverage_compiles",
        "cubins_checked",
        "numerics_checked",
        "max_relative_error",
        "guards_ok",
        "addresses_ok",
        "seq_lens_ok",
        "batch_ok",
        "seconds_coverage",
    )

    def run(self, ctx: View) -> Result:
        """VerifyError lists everything that is not as it should be."""
        recipe, problems, baked = ctx[RECIPE], ctx[WORKLOAD].problems, ctx[BAKED]
        faults: list[str] = []
        figures: dict[str, Any] = {}
        if problems:
            faults += self._cache(problems, ctx, figures)
            num_cubins, cubin_faults = cache_faults(baked.warm_cache, recipe.target.sm)
            figures["cubins_checked"] = num_cubins
            faults += cubin_faults
        faults += buffer_faults(ctx[RESERVED], ctx[FORWARD], ctx[BATCH].multiple, figures)
        after = {name: count for name, count in ctx[ALLOCATED].items() if name in WITHOUT_ALLOCATION}
        figures["buffers.allocations_after"] = sum(count or 0 for count in after.values())
        faults += [f"stage {name} allocated {count} bytes after `allocate`" for name, count in after.items() if count]
        if faults:
            figures["faults"] = faults
            shown = faults[:FAULTS_SHOWN]
            more = (
                [f"and {len(faults) - len(shown)} more; report.json has them all"] if len(faults) > len(shown) else []
            )
            raise VerifyError("\n".join([*shown, *more]), figures=figures)
        return Result(
            f"{figures.get('coverage_m_values', 0)} M launched again, 0 compiles; "
            f"{figures.get('cubins_checked', 0)} cubins good; buffers good; "
            f"numerics not checked: no {recipe.target.product} here",
            figures,
        )

    def _cache(self, problems: Sequence[Problem], ctx: View, figures: dict[str, Any]) -> list[str]:
        baked, progress = ctx[BAKED], Reporter(ctx[EVENTS], "verify")
        found, lacking = baked.discoverer.check(problems, baked.warm_cache, lambda a, b: progress("M launched", a, b))
        figures["coverage_m_values"] = found.num_launched
        figures["coverage_compiles"] = len(lacking)
        figures["seconds_coverage"] = round(found.seconds, 3)
        keys = {problem.name: len(kernels.keys) for problem, kernels in zip(problems, found.problems, strict=True)}
        ctx[PROOF] = Proof(keys, len(found.keys))
        return [missing_line(key, problems, found) for key in lacking]


def missing_line(key: str, problems: Sequence[Problem], found: Discovery) -> str:
    """Which problem would compile this key at which M."""
    for problem, kernels in zip(problems, found.problems, strict=True):
        for first, last, keys in kernels.runs:
            if key in keys:
                return f"{key} is not in the cache: {problem.name} would compile it at M {first} to {last}"
    return f"{key} is not in the cache"


def buffer_faults(reserved: Reserved, forward: ForwardResult, multiple: int, figures: dict[str, Any]) -> list[str]:
    """Guards, addresses, and what a dummy run must hold to."""
    broken = reserved.arena.check_guards()
    moved = [name for name, address in reserved.arena.addresses().items() if address != reserved.addresses[name]]
    figures["guards_ok"] = not broken
    figures["addresses_ok"] = not moved
    figures["seq_lens_ok"] = forward.min_seq_len > 0
    figures["batch_ok"] = forward.batch % multiple == 0
    faults = [f"buffer {name}: something wrote past its end" for name in broken]
    faults += [f"buffer {name}: moved during the run" for name in moved]
    if forward.min_seq_len <= 0:
        faults.append("a dummy run saw a sequence length of 0")
    if forward.batch % multiple != 0:
        faults.append(f"a dummy run had {forward.batch} requests, not a multiple of {multiple}")
    return faults
