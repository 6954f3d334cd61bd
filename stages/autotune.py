"""Run a decode-shaped dummy forward over the arena, inside the tuning context where the server tunes something."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from pipeline.buffers.decode_set import AdapterKind
from pipeline.engine.context import View
from pipeline.engine.events import Reporter
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.recipe import Recipe
from pipeline.slots import (
    BAKED,
    BATCH,
    BUFFER_PLAN,
    DECODE_BUFFERS,
    EVENTS,
    FORWARD,
    KERNELS,
    RECIPE,
    RESERVED,
    WORKLOAD,
    ForwardResult,
)
from pipeline.workload.servers import sglang_batches


@dataclass(kw_only=True)
class Autotune(Stage):
    """One layer of each distinct kind that any rank holds, at the aligned batch."""

    reads = (RECIPE, EVENTS, KERNELS, WORKLOAD, BUFFER_PLAN, RESERVED, DECODE_BUFFERS, BATCH)
    may_read = (BAKED,)
    writes = (FORWARD,)
    resource = Resource.DEVICE
    section = "autotune"
    figures = ("ops", "tactics", "reused", "forward_gemms", "forward_batch", "graphs_replayed", "forward_compiled")

    def run(self, ctx: View) -> Result | Skipped:
        """The forward always runs; with nothing to tune the stage is Skipped with the reason."""
        from pipeline.kernels.dummy_forward import DummyLayer

        plan, batch = ctx[BUFFER_PLAN], ctx[BATCH].requests
        view = ctx[DECODE_BUFFERS].view(batch)
        tokens = batch * plan.size.tokens_per_request
        progress = Reporter(ctx[EVENTS], "autotune")
        if (baked := ctx.get(BAKED)) is not None:
            ctx[KERNELS].use_cache(baked.warm_cache)
        arena, num_gemms, replayed = ctx[RESERVED].arena, 0, 0
        for done, layer in enumerate(plan.layers):
            progress("layers", done, len(plan.layers))
            with arena.phase(layer.phase):
                dummy = DummyLayer(layer, ctx[WORKLOAD].facts, arena, ctx[KERNELS])
                dummy.randomize()
                num_gemms += dummy.run(tokens, view["seq_lens"])
                if plan.size.kind is AdapterKind.decode_graph:
                    replayed += ctx[KERNELS].replay(partial(dummy.run, tokens, view["seq_lens"]))
        progress("layers", len(plan.layers), len(plan.layers))
        least = min(view["seq_lens"].tolist())
        ctx[FORWARD] = ForwardResult(num_gemms, least, batch, tuple(sorted(view)), tactics=0)
        figures: dict[str, Any] = {
            "ops": [],
            "tactics": 0,
            "reused": 0,
            "forward_gemms": num_gemms,
            "forward_batch": batch,
        }
        figures["graphs_replayed"] = replayed or None
        figures["forward_compiled"] = ctx[KERNELS].num_compiled()
        return Skipped(nothing_tuned(ctx[RECIPE], ctx[KERNELS].name), figures)


def nothing_tuned(recipe: Recipe, kernels: str) -> str:
    """Why this run tuned nothing: the server tunes nothing, or there is no device to measure on."""
    server_reason = sglang_batches.nothing_to_autotune(recipe.server)
    return server_reason or (
        f"tactics are timed on the target GPU; device.kind={recipe.device.kind.name} ({kernels} kernels) has none"
    )
