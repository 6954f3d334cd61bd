"""Discover every kernel that the problems need, compile what the store lacks, publish the warm cache."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.deepgemm.bake import Baker
from pipeline.deepgemm.bake_report import require_complete, sweep_figures, sweep_summary
from pipeline.deepgemm.farm import Farm, default_workers
from pipeline.deepgemm.store import Store
from pipeline.engine.context import View
from pipeline.engine.events import Reporter
from pipeline.engine.stage import Result, Skipped, Stage
from pipeline.figures import SweepFigures
from pipeline.slots import (
    ANSWER,
    BAKED,
    CHILDREN,
    DISCOVERER,
    EVENTS,
    PLACES,
    RECIPE,
    TOOLKIT,
    WORKLOAD,
    Baked,
)


@dataclass(kw_only=True)
class Sweep(Stage):
    """Uses CPU cores only; runs beside the stages that hold the device."""

    jobs: int | None = None
    """Compilers at a time; None means as many as cores and free memory allow."""
    bytes_per_kernel: int = 128 * 1024
    """Disk that one kernel may take, for the check before compiling; the largest seen is about 100 KiB."""

    reads = (RECIPE, PLACES, EVENTS, CHILDREN, WORKLOAD, TOOLKIT, DISCOVERER)
    may_read = (ANSWER,)
    writes = (BAKED,)
    reports = (SweepFigures,)
    leaves_output = True

    def run(self, ctx: View) -> Result | Skipped:
        """StageError when nvcc rejects a kernel; IncompleteError when not all kernels could be listed."""
        problems = ctx[WORKLOAD].problems if ctx[RECIPE].discovery.uses_rules else ()
        answer = ctx.get(ANSWER)
        if not problems and answer is None:
            ctx[BAKED] = Baked(sources=[], problems=())
            reason = "no problem of this recipe goes to DeepGEMM; see the plan for the reasons"
            return Skipped(reason, (SweepFigures(problems=0),))
        baker = self._baker(ctx)
        num_asked = None if answer is None else len(answer.problems)
        baker.require_room(len(problems) + (num_asked or 0), self.bytes_per_kernel)
        bake = baker.bake(problems, None if answer is None else answer.stub_cache)
        ctx[BAKED] = Baked(sources=bake.sources, problems=problems)
        figures = sweep_figures(bake, problems, baker.farm)
        require_complete(bake, problems, () if answer is None else answer.faults, figures)
        return Result(sweep_summary(bake, figures, num_asked), (figures,))

    def config_errors(self, recipe: object) -> list[str]:
        """A number of compilers below one."""
        return [f"sweep.jobs must be at least 1, got {self.jobs}"] if self.jobs is not None and self.jobs < 1 else []

    def _baker(self, ctx: View) -> Baker:
        store = Store(ctx[PLACES].store)
        sm = ctx[RECIPE].target.sm
        farm = Farm(ctx[TOOLKIT], store, ctx[CHILDREN], self.jobs or default_workers(), sm)
        progress = Reporter(ctx[EVENTS], "sweep")
        return Baker(discoverer=ctx[DISCOVERER], farm=farm, places=ctx[PLACES], on_progress=progress)
