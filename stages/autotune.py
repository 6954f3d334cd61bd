"""Tune FlashInfer's operations where the server tunes something, into the files that it reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pipeline.deepgemm.hardware import gpu_mismatch
from pipeline.engine.context import View
from pipeline.engine.errors import unknown
from pipeline.engine.events import Reporter
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.figures import AutotuneFigures
from pipeline.recipe import DeviceKind, Recipe
from pipeline.slots import BATCH, CHILDREN, EVENTS, NO_RULES, PLACES, RECIPE, TACTICS, WORKLOAD
from pipeline.tuning.campaign import require_tactics, shapes_of, tune_all
from pipeline.tuning.tactics import FUSED_MOE, TUNABLE, OpResult, Tuned, Tuner, power_of_two_buckets


@dataclass(kw_only=True)
class Autotune(Stage):
    """One child process for each operation; with nothing to tune the stage is Skipped with the reason."""

    ops: list[str] = field(default_factory=list[str])
    """FlashInfer operations to tune: fp8_gemm, bf16_gemm, cutlass_fused_moe; empty means what the server tunes."""
    frozen: bool = False
    """Tune nothing, and fail when a shape of `ops` has no tactic in the output's file; needs no GPU."""
    limit_s: float = 600.0
    """Seconds that tuning one operation may take; what takes longer is ended and recorded as bad."""

    reads = (RECIPE, PLACES, EVENTS, CHILDREN, WORKLOAD, BATCH)
    may_read = (NO_RULES,)
    writes = (TACTICS,)
    resource = Resource.DEVICE
    reports = (AutotuneFigures,)
    allocates_nothing = True

    def run(self, ctx: View) -> Result | Skipped:
        """StageError when frozen and a shape has no tactic."""
        if (no_rules := ctx.get(NO_RULES)) is not None:
            ctx[TACTICS] = ()
            return Skipped(no_rules.nothing_to_run, (figures_of([]),))
        by_server = ctx[WORKLOAD].rules.nothing_to_autotune
        # The GPU is asked in a child process that imports torch: only where the answer matters.
        no_gpu = nothing_can_be_timed(ctx[RECIPE]) if self.ops or by_server is None else None
        if not self.ops or (no_gpu and not self.frozen):
            ctx[TACTICS] = ()
            return Skipped(self._nothing_tuned(no_gpu, by_server), (figures_of([]),))
        results, tuned = self._tune(ctx)
        # Without the GPU, verify cannot execute what the file holds.
        ctx[TACTICS] = () if no_gpu else tuned
        return Result("; ".join(result.summary() for result in results), (figures_of(results),))

    def _tune(self, ctx: View) -> tuple[list[OpResult], tuple[Tuned, ...]]:
        buckets = power_of_two_buckets(ctx[BATCH].requests)
        tuner = Tuner(ctx[PLACES].tactics / "tactics.json", ctx[CHILDREN], buckets, self.limit_s)
        shapes = {op: shapes_of(op, ctx[WORKLOAD], buckets) for op in self.ops}
        if self.frozen:
            return require_tactics(tuner, shapes), tuple(Tuned(tuner, op, shapes[op]) for op in self.ops)
        return tune_all(tuner, shapes, Reporter(ctx[EVENTS], "autotune").counting("operations tuned"))

    def _nothing_tuned(self, no_gpu: str | None, by_server: str | None) -> str:
        if self.ops and no_gpu:
            return f"{', '.join(self.ops)}: {no_gpu}"
        return by_server or no_gpu or "no operation named in autotune.ops"

    def config_errors(self, recipe: object) -> list[str]:
        """Operations that are not known."""
        known = (*TUNABLE, FUSED_MOE)
        return ["autotune.ops: " + unknown("operation", op, known) for op in self.ops if op not in known]


def nothing_can_be_timed(recipe: Recipe) -> str | None:
    """Why no tactic can be timed here, or None: a tactic is chosen on the target GPU only."""
    if recipe.device.kind is DeviceKind.cpu:
        return "tactics are timed on the target GPU; device.kind=cpu has none"
    return gpu_mismatch(recipe.target)


def figures_of(results: Sequence[OpResult]) -> AutotuneFigures:
    """What all operations came to; `reused` tactics were in the file before."""
    return AutotuneFigures(
        ops=[result.to_json() for result in results],
        tactics=sum(result.num_entries for result in results),
        reused=sum(result.num_entries - result.num_new for result in results),
    )
