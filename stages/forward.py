"""Run decode- and extend-shaped dummy forwards over the arena."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.buffers.decode_set import DecodeField
from pipeline.engine.context import View
from pipeline.engine.events import Reporter
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.figures import ForwardFigures
from pipeline.slots import (
    BAKED,
    BATCH,
    BUFFER_PLAN,
    DECODE_BUFFERS,
    EVENTS,
    FORWARD,
    KERNELS,
    NO_RULES,
    PLACES,
    RESERVED,
    WORKLOAD,
    ForwardResult,
)


@dataclass(kw_only=True)
class Forward(Stage):
    """One layer of each distinct kind that any rank holds: at the aligned decode batch, and at one chunk of prefill."""

    reads = (PLACES, EVENTS, KERNELS, WORKLOAD, BUFFER_PLAN, RESERVED, DECODE_BUFFERS, BATCH)
    may_read = (NO_RULES, BAKED)
    writes = (FORWARD,)
    resource = Resource.DEVICE
    reports = (ForwardFigures,)
    allocates_nothing = True

    def run(self, ctx: View) -> Result | Skipped:
        """Every layer, phase after phase."""
        if (no_rules := ctx.get(NO_RULES)) is not None:
            return Skipped(no_rules.nothing_to_run)
        from pipeline.kernels.dummy_forward import DummyLayer, DummyRun, run_layers
        from pipeline.kernels.layer_operands import LayerOperands

        plan = ctx[BUFFER_PLAN]
        kernels = ctx[KERNELS]
        batch = ctx[BATCH].requests
        view = ctx[DECODE_BUFFERS].view(batch)
        seq_lens_B = view[DecodeField.SEQ_LENS]
        if ctx.get(BAKED) is not None:
            kernels.use_cache(ctx[PLACES].warm_cache)
        layers = [DummyLayer(LayerOperands(layer, ctx[RESERVED].arena), kernels) for layer in plan.layers]
        run = DummyRun(tokens=plan.size.tokens_of(batch), seq_lens_B=seq_lens_B, kind=plan.size.kind)
        num_gemms, replayed = run_layers(layers, run, Reporter(ctx[EVENTS], "forward").counting("layers"))
        ctx[FORWARD] = ForwardResult(
            num_gemms=num_gemms,
            min_seq_len=min(seq_lens_B.tolist()),
            batch=batch,
            fields=tuple(sorted(view)),
        )
        extend_tokens = max(layer.tokens for layer in plan.layers if layer.is_extend)
        figures = ForwardFigures(
            gemms=num_gemms,
            batch=batch,
            extend_tokens=extend_tokens,
            graphs_replayed=replayed or None,
            compiled=kernels.num_compiled(),
        )
        return Result(self._summary(figures, ctx), (figures,))

    def _summary(self, figures: ForwardFigures, ctx: View) -> str:
        summary = f"{figures.gemms} GEMMs of {len(ctx[BUFFER_PLAN].layers)} layers, {figures.batch} requests"
        chunk = ctx[WORKLOAD].rules.chunk
        if figures.extend_tokens is not None and figures.extend_tokens < chunk:
            summary += f", prefill of {figures.extend_tokens} tokens (a chunk's {chunk} take too long on the CPU)"
        return summary
