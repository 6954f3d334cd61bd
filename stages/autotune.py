"""Run decode- and extend-shaped dummy forwards over the arena, and tune where the server tunes something."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.buffers.decode_set import AdapterKind
from pipeline.deepgemm.hardware import gpu_mismatch
from pipeline.engine.context import View
from pipeline.engine.errors import StageError, unknown
from pipeline.engine.events import Reporter
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.recipe import DeviceKind, Recipe
from pipeline.slots import (
    BAKED,
    BATCH,
    BUFFER_PLAN,
    CHILDREN,
    DECODE_BUFFERS,
    EVENTS,
    FORWARD,
    KERNELS,
    RECIPE,
    RESERVED,
    WORKLOAD,
    ForwardResult,
    Tuned,
)
from pipeline.tuning.tactics import FUSED_MOE, TUNABLE, ForeignFile, OpResult, Shape, Tuner, power_of_two_buckets
from pipeline.workload.derive import Workload
from pipeline.workload.linears import Role, Split
from pipeline.workload.problems import Kernel

log = logging.getLogger("preheat")
MAX_FOREIGN_FILES = 100


@dataclass(kw_only=True)
class Autotune(Stage):
    """One layer of each distinct kind that any rank holds: at the aligned decode batch, and at one chunk of prefill."""

    ops: list[str] = field(default_factory=list[str])
    """FlashInfer operations to tune: fp8_gemm, bf16_gemm, cutlass_fused_moe; empty means what the server tunes."""
    frozen: bool = False
    """Tune nothing, and fail when a shape of `ops` has no tactic in the output's file; needs no GPU."""
    limit_s: float = 600.0
    """Seconds that tuning one operation may take; what takes longer is ended and recorded as bad."""

    reads = (RECIPE, EVENTS, CHILDREN, KERNELS, WORKLOAD, BUFFER_PLAN, RESERVED, DECODE_BUFFERS, BATCH)
    may_read = (BAKED,)
    writes = (FORWARD,)
    resource = Resource.DEVICE
    section = "autotune"
    figures = (
        "ops",
        "tactics",
        "reused",
        "forward_gemms",
        "forward_batch",
        "extend_tokens",
        "graphs_replayed",
        "forward_compiled",
    )

    def run(self, ctx: View) -> Result | Skipped:
        """The forward always runs; with nothing to tune the stage is Skipped with the reason."""
        from pipeline.kernels.dummy_forward import DummyLayer

        plan = ctx[BUFFER_PLAN]
        batch = ctx[BATCH].requests
        view = ctx[DECODE_BUFFERS].view(batch)
        tokens = batch * plan.size.tokens_per_request
        progress = Reporter(ctx[EVENTS], "autotune")
        if (baked := ctx.get(BAKED)) is not None:
            ctx[KERNELS].use_cache(baked.warm_cache)
        arena = ctx[RESERVED].arena
        num_gemms = 0
        replayed = 0
        for done, layer in enumerate(plan.layers):
            progress("layers", done, len(plan.layers))
            with arena.phase(layer.phase):
                dummy = DummyLayer(layer, arena, ctx[KERNELS])
                dummy.randomize()
                num_gemms += dummy.run(layer.tokens if layer.is_extend else tokens, view["seq_lens"])
                if plan.size.kind is AdapterKind.decode_graph and not layer.is_extend:
                    replayed += ctx[KERNELS].replay(partial(dummy.run, tokens, view["seq_lens"]))
        progress("layers", len(plan.layers), len(plan.layers))
        extend_tokens = max(layer.tokens for layer in plan.layers)
        chunk = ctx[WORKLOAD].rules.chunk
        if extend_tokens < chunk:
            log.info("prefill ran with %d tokens of a chunk's %d: the CPU has no more time", extend_tokens, chunk)
        tuned, results = self._tune(ctx, progress)
        least = min(view["seq_lens"].tolist())
        num_tactics = sum(result.num_entries for result in results)
        ctx[FORWARD] = ForwardResult(num_gemms, least, batch, tuple(sorted(view)), num_tactics, tuned)
        figures: dict[str, Any] = {
            "ops": [result.to_json() for result in results],
            "tactics": num_tactics,
            "reused": sum(result.num_entries - result.num_new for result in results),
            "forward_gemms": num_gemms,
            "forward_batch": batch,
            "extend_tokens": max(layer.tokens for layer in plan.layers if layer.is_extend),
            "graphs_replayed": replayed or None,
            "forward_compiled": ctx[KERNELS].num_compiled(),
        }
        if not results:
            return Skipped(nothing_tuned(ctx[RECIPE], ctx[WORKLOAD], self.ops), figures)
        return Result("; ".join(result.summary() for result in results), figures)

    def problems(self) -> list[str]:
        """Operations that are not known."""
        known = (*TUNABLE, FUSED_MOE)
        return ["autotune.ops: " + unknown("operation", op, known) for op in self.ops if op not in known]

    def _tune(self, ctx: View, progress: Reporter) -> tuple[tuple[Tuned, ...], list[OpResult]]:
        recipe = ctx[RECIPE]
        batch = ctx[BATCH].requests
        not_here = nothing_can_be_timed(recipe) if self.ops else None
        if not self.ops or (not_here is not None and not self.frozen):
            return (), []
        buckets = power_of_two_buckets(batch)
        tuner = Tuner(tactic_file(recipe), ctx[CHILDREN], buckets, self.limit_s)
        tuned: list[Tuned] = []
        results: list[OpResult] = []
        for done, op in enumerate(self.ops):
            progress("operations tuned", done, len(self.ops))
            shapes = shapes_of(op, ctx[WORKLOAD], buckets)
            if self.frozen:
                if missing := tuner.missing(op, shapes):
                    raise StageError(
                        f"autotune.frozen: {len(missing)} of {len(shapes)} shapes of {op} have no tactic in "
                        f"{tuner.file}, first (M, N, K) = {missing[0]}; tune once with autotune.frozen=false"
                    )
                result = OpResult(op, num_entries=len(shapes))
            else:
                tuner, result = tune_beside_foreign_files(tuner, op, shapes)
            results.append(result)
            if result.bad is None and not_here is None:
                tuned.append(Tuned(tuner, op, shapes))
        progress("operations tuned", len(self.ops), len(self.ops))
        return tuple(tuned), results


def shapes_of(op: str, workload: Workload, buckets: Sequence[int]) -> tuple[Shape, ...]:
    """What the servers would call the operation with: every dense problem, or the experts of every stage."""
    if op == FUSED_MOE:
        experts = dict.fromkeys(
            (w2.n, w2.k, w2.groups, workload.rules.routes_per_token)
            for stage in workload.stages
            for w2 in stage.linears
            if w2.role is Role.EXPERTS and w2.split is Split.ROW
        )
        return tuple((m, *sizes) for sizes in experts for m in buckets)
    weights = dict.fromkeys((p.n, p.k) for p in workload.problems if p.kernel is Kernel.DENSE)
    return tuple((m, n, k) for n, k in weights for m in buckets)


def tune_beside_foreign_files(tuner: Tuner, op: str, shapes: Sequence[Shape]) -> tuple[Tuner, OpResult]:
    """Tune into the file, or, where it belongs to another GPU or version, into a new one beside it."""
    for number in range(1, MAX_FOREIGN_FILES):
        try:
            return tuner, tuner.tune(op, shapes)
        except ForeignFile as error:
            beside = tuner.file.with_name(f"tactics-{number}.json")
            log.warning("%s is kept and not used: %s; tuning into %s", tuner.file, error, beside.name)
            tuner = replace(tuner, file=beside)
    raise StageError(f"{tuner.file.parent} is full of tactic files of other machines; remove what is not needed")


def tactic_file(recipe: Recipe) -> Path:
    """Where this recipe's tactics are."""
    return Path(recipe.output.dir).absolute() / "autotune" / "tactics.json"


def nothing_can_be_timed(recipe: Recipe) -> str | None:
    """Why tactics cannot be timed in this run: they count on the target GPU only."""
    if recipe.device.kind is DeviceKind.cpu:
        return "tactics are timed on the target GPU; device.kind=cpu has none"
    return gpu_mismatch(recipe.target)


def nothing_tuned(recipe: Recipe, workload: Workload, ops: Sequence[str]) -> str:
    """Why this run tuned nothing: there is no GPU to time on, or the server tunes nothing."""
    not_here = nothing_can_be_timed(recipe)
    server_reason = workload.rules.nothing_to_autotune
    if ops and not_here:
        return f"{', '.join(ops)}: {not_here}"
    return server_reason or not_here or "no operation named in autotune.ops"
