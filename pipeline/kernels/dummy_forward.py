"""One dummy forward of a layer over the arena: real shapes, random values, nothing allocated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from pipeline.buffers.decode_set import AdapterKind
from pipeline.buffers.names import LayerBuffer, LinearBuffer
from pipeline.kernels.dummy_experts import DummyExperts
from pipeline.kernels.layer_operands import LayerOperands
from pipeline.kernels.protocol import Cache, Kernels
from pipeline.workload.linears import ATTENDED, HIDDEN, Linear


@dataclass(frozen=True, slots=True)
class DummyLayer:
    """A layer whose operands lie in the arena; `run` may be called inside its phase only."""

    operands: LayerOperands
    kernels: Kernels

    def run(self, tokens: int, seq_lens_B: Tensor) -> int:
        """Run the layer over what `randomize` left; returns how many GEMMs were launched.

        `tokens` is the batch times the tokens of one request, `seq_lens_B` the decode set's own; an extend-shaped layer
        keeps its own, one row for each position in a request. Only launches: a CUDA graph can capture it.
        """
        plan = self.operands.plan
        hidden = self.operands.rows(LayerBuffer.HIDDEN, tokens)
        normed = self.operands.rows(LayerBuffer.NORMED, tokens)
        self._norm(hidden, normed)
        seq_lens_B = self.operands.whole(LayerBuffer.SEEN)[0] if plan.is_extend else seq_lens_B
        num_gemms = self._attention(normed, hidden, tokens, seq_lens_B)
        self._norm(hidden, normed)
        for gate_up in plan.gate_ups:
            num_gemms += self._feed_forward(gate_up, normed, hidden, tokens)
        if plan.experts is not None:
            num_gemms += DummyExperts(self.operands, self.kernels, *plan.experts).run(normed, hidden, tokens)
        return num_gemms

    def _attention(self, normed: Tensor, hidden: Tensor, tokens: int, seq_lens_B: Tensor) -> int:
        """Linears in order; the attention itself runs before the first one that reads what it gave."""
        linears = self.operands.plan.attention
        is_attended = False
        for linear in linears:
            if linear.source == ATTENDED and not is_attended:
                self._attend(tokens, seq_lens_B)
                is_attended = True
            x = normed if linear.source == HIDDEN else self._input(linear, tokens)
            self._gemm(linear, x, tokens, out=hidden if linear.source == ATTENDED else None)
        if not is_attended:
            self._attend(tokens, seq_lens_B)
        return len(linears)

    def _input(self, linear: Linear, tokens: int) -> Tensor:
        """The columns that the linear reads of an earlier output, normed as models do between two projections.

        A grouped output projection or a recurrence between attention and the last linear is no product of this list:
        its place is taken by the first columns of what was attended.
        """
        source = self._source(linear, tokens)
        if not self.operands.plan.reads_a_part(linear):
            return source
        if linear.k > source.shape[1]:
            source = self.operands.rows(LayerBuffer.HIDDEN, tokens)
        columns = source.narrow(1, min(linear.source_column, source.shape[1] - linear.k), linear.k)
        x = self.operands.rows_of(linear.name, LinearBuffer.NORMED, tokens)
        self._norm(columns, x)
        return x

    def _source(self, linear: Linear, tokens: int) -> Tensor:
        """Whose columns the linear reads; the hidden states stand in for a linear that is not on DeepGEMM."""
        if linear.source == ATTENDED:
            return self.operands.rows(LayerBuffer.ATTENDED, tokens).flatten(1)
        if self.operands.plan.launches(linear.source):
            return self.operands.rows_of(linear.source, LinearBuffer.OUT, tokens)
        return self.operands.rows(LayerBuffer.HIDDEN, tokens)

    def _attend(self, tokens: int, seq_lens_B: Tensor) -> None:
        plan = self.operands.plan
        query = self._query(tokens)
        attended = self.operands.rows(LayerBuffer.ATTENDED, tokens)
        requests = seq_lens_B.shape[0]
        k_cache = self.operands.rows(LayerBuffer.K_CACHE, requests)
        v_cache = self.operands.rows(LayerBuffer.V_CACHE, requests)
        per_request = tokens // requests
        # Every token of a request sees the request's own cached rows; views only, so nothing is copied.
        for token in range(per_request):
            step = slice(token, None, per_request)
            seen_B = self.operands.whole(LayerBuffer.SEEN)[token] if plan.is_extend else seq_lens_B
            self.kernels.attention(
                query[step], Cache(k_cache, v_cache, seen_B), plan.geometry.head**-0.5, attended[step]
            )

    def _query(self, tokens: int) -> Tensor:
        """The query as [tokens, heads, head], for the attention kernel."""
        plan = self.operands.plan
        if plan.query is None:
            return self.operands.rows(LayerBuffer.QUERY, tokens)
        shape = plan.geometry
        out = self.operands.rows_of(plan.query.name, LinearBuffer.OUT, tokens)
        return out.narrow(1, 0, shape.heads * shape.head).unflatten(1, (shape.heads, -1))

    def _feed_forward(self, gate_up: Linear, normed: Tensor, hidden: Tensor, tokens: int) -> int:
        activated = self.operands.rows_of(gate_up.name, LinearBuffer.ACTIVATED, tokens)
        self.kernels.silu_and_mul(self._gemm(gate_up, normed, tokens), activated)
        down = self.operands.plan.reader_of(gate_up)
        if down is None:
            return 1
        self._gemm(down, activated, tokens, out=hidden)
        return 2

    def _gemm(self, linear: Linear, x: Tensor, tokens: int, *, out: Tensor | None = None) -> Tensor:
        name = linear.name
        operand = (
            self.operands.rows_of(name, LinearBuffer.X, tokens),
            self.operands.rows_of(name, LinearBuffer.X_SCALE, tokens),
        )
        self.kernels.quantize_fp8(x, *operand)
        out = self.operands.rows_of(name, LinearBuffer.OUT, tokens) if out is None else out
        self.kernels.gemm_fp8(operand, self.operands.weight(name), out)
        return out

    def _norm(self, x: Tensor, out: Tensor) -> None:
        weight = self.operands.whole(LayerBuffer.NORM_WEIGHT)
        self.kernels.rms_norm(x, weight.narrow(0, 0, x.shape[1]), out)


@dataclass(frozen=True, slots=True, kw_only=True)
class DummyRun:
    """What every layer of one dummy forward shares."""

    tokens: int
    """Tokens of the decode-shaped batch."""
    seq_lens_B: Tensor
    """The decode set's own sequence lengths."""
    kind: AdapterKind
    """decode_graph: decode-shaped layers are captured and replayed too, where the device has graphs."""


def run_layers(layers: Sequence[DummyLayer], run: DummyRun, on_progress: Callable[[int, int], None]) -> tuple[int, int]:
    """(GEMMs launched, layers replayed from a graph); each layer runs in its own phase of the arena."""
    num_gemms = 0
    num_replayed = 0
    for index, layer in enumerate(layers):
        on_progress(index, len(layers))
        plan = layer.operands.plan
        with layer.operands.phase():
            layer.operands.randomize()
            tokens = plan.tokens if plan.is_extend else run.tokens
            num_gemms += layer.run(tokens, run.seq_lens_B)
            if run.kind is AdapterKind.decode_graph and not plan.is_extend:
                num_replayed += layer.kernels.replay(partial(layer.run, tokens, run.seq_lens_B))
    on_progress(len(layers), len(layers))
    return num_gemms, num_replayed
