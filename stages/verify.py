"""Believe nothing: launch every M again with no compiler in reach, check every cubin, and check the buffers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pipeline.deepgemm.cache import cache_faults
from pipeline.deepgemm.discovery import Discovery
from pipeline.deepgemm.hardware import check_on_gpu, discover_on_real_gpu, gpu_mismatch
from pipeline.engine.context import View
from pipeline.engine.errors import HostError, VerifyError
from pipeline.engine.events import Reporter
from pipeline.engine.stage import Resource, Result, Stage
from pipeline.slots import (
    ALLOCATED,
    BAKED,
    BATCH,
    EVENTS,
    FORWARD,
    KERNELS,
    PROOF,
    RECIPE,
    RESERVED,
    ForwardResult,
    Proof,
    Reserved,
)
from pipeline.workload.problems import Problem

FAULTS_SHOWN = 10
# Stages that work in the arena; plan comes before it, sweep and export never touch the device.
WITHOUT_ALLOCATION = ("adapter", "align", "autotune")


class DiscoverOn(Enum):
    """Where verify's second discovery runs."""

    virtual = "virtual"
    real = "real"


@dataclass(kw_only=True)
class Verify(Stage):
    """Coverage, cubins and buffers; what needs the target GPU is null in the report when there is none."""

    discover_on: DiscoverOn = DiscoverOn.virtual
    """real: discovery on this machine's GPU too, and its keys must be the virtual GPU's."""

    reads = (RECIPE, EVENTS, KERNELS, ALLOCATED, BAKED, RESERVED, BATCH, FORWARD)
    writes = (PROOF,)
    resource = Resource.DEVICE
    section = "verify"
    figures = (
        "coverage_m_values",
        "coverage_compiles",
        "cubins_checked",
        "cubins_loaded",
        "numerics_checked",
        "without_reference",
        "max_relative_error",
        "guards_ok",
        "addresses_ok",
        "seq_lens_ok",
        "batch_ok",
        "seconds_coverage",
        "hardware_skipped",
        "tactics_replayed",
        "real_keys",
        "seconds_real_discovery",
    )

    def run(self, ctx: View) -> Result:
        """VerifyError lists everything that is not as it should be."""
        recipe = ctx[RECIPE]
        baked = ctx[BAKED]
        problems = baked.problems
        faults: list[str] = []
        figures: dict[str, Any] = {}
        if problems:
            faults += self._cache(problems, ctx, figures)
        if problems or recipe.discovery.asks_server:
            num_cubins, cubin_faults = cache_faults(baked.warm_cache, recipe.target.sm)
            figures["cubins_checked"] = num_cubins
            faults += cubin_faults
        faults += tactic_faults(ctx[FORWARD], figures)
        faults += buffer_faults(ctx[RESERVED], ctx[FORWARD], ctx[BATCH].multiple, figures)
        after = {name: count for name, count in ctx[ALLOCATED].items() if name in WITHOUT_ALLOCATION}
        figures["buffers.peak_device_bytes"] = ctx[KERNELS].peak_bytes()
        figures["buffers.not_in_arena"] = dict(ctx[KERNELS].workspaces)
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
            f"{hardware_summary(figures)}",
            figures,
        )

    def _cache(self, problems: Sequence[Problem], ctx: View, figures: dict[str, Any]) -> list[str]:
        baked = ctx[BAKED]
        progress = Reporter(ctx[EVENTS], "verify")
        found, lacking = baked.discoverer.check(problems, baked.warm_cache, lambda a, b: progress("M launched", a, b))
        figures["coverage_m_values"] = found.num_launched
        figures["coverage_compiles"] = len(lacking)
        figures["seconds_coverage"] = round(found.seconds, 3)
        keys = {problem.name: len(kernels.keys) for problem, kernels in zip(problems, found.problems, strict=True)}
        ctx[PROOF] = Proof(keys)
        faults = [missing_line(key, problems, found) for key in lacking]
        mismatch = gpu_mismatch(ctx[RECIPE].target)
        if mismatch is None:
            checked = check_on_gpu(
                baked.discoverer, problems, found, baked.warm_cache, lambda a, b: progress("kernels executed", a, b)
            )
            figures["cubins_loaded"] = checked.num_loaded
            figures["numerics_checked"] = checked.num_executed
            figures["without_reference"] = len(found.keys) - checked.num_executed
            figures["max_relative_error"] = checked.max_relative_error
            faults += checked.faults
        else:
            figures["hardware_skipped"] = mismatch
        if self.discover_on is DiscoverOn.real:
            faults += self._real_discovery(mismatch, problems, found, ctx, figures)
        return faults

    def _real_discovery(
        self, mismatch: str | None, problems: Sequence[Problem], found: Discovery, ctx: View, figures: dict[str, Any]
    ) -> list[str]:
        if mismatch is not None:
            raise HostError(f"verify.discover_on=real needs the target GPU: {mismatch}; use verify.discover_on=virtual")
        progress = Reporter(ctx[EVENTS], "verify")
        started_s = time.monotonic()
        real = discover_on_real_gpu(ctx[BAKED].discoverer, problems, lambda a, b: progress("M on the GPU", a, b))
        figures["seconds_real_discovery"] = round(time.monotonic() - started_s, 3)
        figures["real_keys"] = len(real)
        only_real = sorted(real - set(found.keys))
        only_virtual = sorted(set(found.keys) - real)
        faults = [f"{key}: needed on the real GPU, not on the virtual one" for key in only_real]
        return faults + [f"{key}: needed on the virtual GPU, not on the real one" for key in only_virtual]


def hardware_summary(figures: dict[str, Any]) -> str:
    """What the GPU confirmed, or why it was not asked."""
    if figures.get("numerics_checked") is None:
        return f"numerics not checked: {figures.get('hardware_skipped', 'nothing to run')}"
    error = figures["max_relative_error"]
    without = figures.get("without_reference")
    only_loaded = f", {without} loaded only (no reference)" if without else ""
    worst = "" if error is None else f", relative error at most {error:.1e}"
    return f"{figures['numerics_checked']} kernels executed{worst}{only_loaded}"


def missing_line(key: str, problems: Sequence[Problem], found: Discovery) -> str:
    """Which problem would compile this key at which M."""
    for problem, kernels in zip(problems, found.problems, strict=True):
        for first, last, keys in kernels.runs:
            if key in keys:
                return f"{key} is not in the cache: {problem.name} would compile it at M {first} to {last}"
    return f"{key} is not in the cache"


def tactic_faults(forward: ForwardResult, figures: dict[str, Any]) -> list[str]:
    """What a fresh process finds wrong with the tactics: it loads them, tunes nothing and executes each shape once."""
    faults = [tuned.tuner.replay(tuned.op, tuned.shapes) for tuned in forward.tuned]
    figures["tactics_replayed"] = sum(len(tuned.shapes) for tuned in forward.tuned) if forward.tuned else None
    return [fault for fault in faults if fault is not None]


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
