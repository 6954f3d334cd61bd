"""Believe nothing: launch every M again with no compiler in reach, check every cubin, and check the buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from pipeline.deepgemm.cache import cache_faults
from pipeline.deepgemm.coverage import Coverage
from pipeline.engine.context import Ended, View
from pipeline.engine.errors import VerifyError, shortened
from pipeline.engine.events import Reporter
from pipeline.engine.stage import Resource, Result, Stage
from pipeline.figures import MemoryFigures, VerifyFigures
from pipeline.slots import (
    BAKED,
    BATCH,
    DISCOVERER,
    EVENTS,
    FORWARD,
    KERNELS,
    NO_RULES,
    PLACES,
    PROOF,
    RECIPE,
    RESERVED,
    TACTICS,
    ForwardResult,
    Proof,
    Reserved,
)
from pipeline.tuning.campaign import replay_faults
from pipeline.tuning.tactics import Tuned


class DiscoverOn(Enum):
    """Where verify's second discovery runs."""

    virtual = "virtual"
    real = "real"


@dataclass(kw_only=True)
class Verify(Stage):
    """Coverage, cubins and buffers; what needs the target GPU is null in the report when there is none."""

    discover_on: DiscoverOn = DiscoverOn.virtual
    """real: discovery on this machine's GPU too, and its keys must be the virtual GPU's."""

    reads = (RECIPE, PLACES, EVENTS, KERNELS, DISCOVERER, BAKED, RESERVED, BATCH, FORWARD, TACTICS)
    may_read = (NO_RULES,)
    writes = (PROOF,)
    resource = Resource.DEVICE
    reports = (VerifyFigures, MemoryFigures)

    def run(self, ctx: View) -> Result:
        """VerifyError lists everything that is not as it should be."""
        figures = VerifyFigures()
        allocated = allocated_after_arena(ctx.ancestors)
        figures.faults += self._kernel_faults(ctx, figures)
        figures.faults += tactic_faults(ctx[TACTICS], figures)
        no_rules = ctx.get(NO_RULES)
        if no_rules is None:
            figures.faults += buffer_faults(ctx[RESERVED], ctx[FORWARD], ctx[BATCH].multiple, figures)
        figures.faults += allocation_faults(allocated)
        kernels = ctx[KERNELS]
        memory = MemoryFigures(
            allocations_after=sum(allocated.values()),
            not_in_arena=dict(kernels.workspaces),
            peak_device_bytes=kernels.peak_bytes(),
        )
        if figures.faults:
            raise VerifyError(shortened(figures.faults), figures=(figures, memory))
        buffers = "buffers good" if no_rules is None else "no buffers without rules"
        summary = (
            f"{figures.coverage_m_values or 0} M launched again, 0 compiles; {figures.cubins_checked or 0} cubins "
            f"good; {buffers}; {hardware_summary(figures)}"
        )
        return Result(summary, (figures, memory))

    def _kernel_faults(self, ctx: View, figures: VerifyFigures) -> list[str]:
        recipe = ctx[RECIPE]
        problems = ctx[BAKED].problems
        warm_cache = ctx[PLACES].warm_cache
        faults: list[str] = []
        keys_of_problem: dict[str, int] = {}
        if problems:
            coverage = Coverage(ctx[DISCOVERER], warm_cache, figures, Reporter(ctx[EVENTS], "verify"))
            faults, keys_of_problem = coverage.check(problems, on_real_gpu=self.discover_on is DiscoverOn.real)
        ctx[PROOF] = Proof(keys_of_problem)
        if problems or recipe.discovery.asks_server:
            figures.cubins_checked, cubin_faults = cache_faults(warm_cache, recipe.target.sm)
            faults += cubin_faults
        return faults


def hardware_summary(figures: VerifyFigures) -> str:
    """What the GPU confirmed, or why it was not asked."""
    if figures.numerics_checked is None:
        return f"numerics not checked: {figures.hardware_skipped or 'nothing to run'}"
    error = figures.max_relative_error
    worst = "" if error is None else f", relative error at most {error:.1e}"
    only_loaded = f", {figures.without_reference} loaded only (no reference)" if figures.without_reference else ""
    return f"{figures.numerics_checked} kernels executed{worst}{only_loaded}"


def tactic_faults(tuned: Sequence[Tuned], figures: VerifyFigures) -> list[str]:
    """What a fresh process finds wrong with the tactics."""
    figures.tactics_replayed = sum(len(operation.shapes) for operation in tuned) if tuned else None
    return replay_faults(tuned)


def buffer_faults(reserved: Reserved, forward: ForwardResult, multiple: int, figures: VerifyFigures) -> list[str]:
    """Guards, addresses, and what a dummy run must hold to."""
    broken = reserved.arena.check_guards()
    moved = [name for name, address in reserved.arena.addresses().items() if address != reserved.addresses[name]]
    figures.guards_ok = not broken
    figures.addresses_ok = not moved
    figures.seq_lens_ok = forward.min_seq_len > 0
    figures.batch_ok = forward.batch % multiple == 0
    faults = [f"buffer {name}: something wrote past its end" for name in broken]
    faults += [f"buffer {name}: moved during the run" for name in moved]
    if forward.min_seq_len <= 0:
        faults.append("a dummy run saw a sequence length of 0")
    if forward.batch % multiple != 0:
        faults.append(f"a dummy run had {forward.batch} requests, not a multiple of {multiple}")
    return faults


def allocated_after_arena(ended: Mapping[str, Ended]) -> dict[str, int]:
    """Bytes of each stage that promised to allocate nothing."""
    return {name: stage.allocated_bytes or 0 for name, stage in ended.items() if stage.allocates_nothing}


def allocation_faults(allocated: Mapping[str, int]) -> list[str]:
    """The stages that allocated all the same."""
    return [f"stage {name} allocated {count} bytes after `allocate`" for name, count in allocated.items() if count]
