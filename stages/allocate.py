"""Make the one allocation of the run, after checking that it fits."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.engine.context import View
from pipeline.engine.errors import HostError
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.figures import ArenaFigures
from pipeline.slots import BUFFER_PLAN, KERNELS, NO_RULES, RECIPE, RESERVED, Reserved


@dataclass(kw_only=True)
class Allocate(Stage):
    """Reserves every buffer at the largest size that any later stage slices."""

    reads = (RECIPE, BUFFER_PLAN, KERNELS)
    may_read = (NO_RULES,)
    writes = (RESERVED,)
    resource = Resource.DEVICE
    reports = (ArenaFigures,)

    def run(self, ctx: View) -> Result | Skipped:
        """HostError when the arena is above the limit or above what is free; nothing is allocated then."""
        if (no_rules := ctx.get(NO_RULES)) is not None:
            return Skipped(no_rules.nothing_to_run)
        from pipeline.buffers.arena import Arena

        layout = ctx[BUFFER_PLAN].layout
        kernels = ctx[KERNELS]
        require_fit(layout.arena_bytes, free=kernels.free_bytes(), limit=ctx[RECIPE].device.memory_limit_bytes)
        arena = Arena(layout, kernels.allocate(layout.arena_bytes))
        ctx[RESERVED] = Reserved(arena, arena.addresses())
        figures = ArenaFigures(arena_bytes=layout.arena_bytes, sum_of_stage_bytes=layout.sum_of_phase_bytes)
        shared = 1 - layout.arena_bytes / max(1, layout.sum_of_phase_bytes)
        summary = f"one arena of {layout.arena_bytes / 2**20:.1f} MiB, {100 * shared:.0f} % less than apart"
        return Result(summary, (figures,))


def require_fit(needed: int, *, free: int, limit: int | None) -> None:
    """HostError when `needed` bytes exceed the limit or what is free."""
    if limit is not None and needed > limit:
        raise HostError(
            f"the arena needs {needed} bytes, device.memory_limit_bytes is {limit}; "
            "raise it or lower server.cuda_graph_max_bs"
        )
    if needed > free:
        raise HostError(f"the arena needs {needed} bytes, {free} are free; lower server.cuda_graph_max_bs")
