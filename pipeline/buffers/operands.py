"""The operands of one dummy layer: a buffer for everything that its kernels read or write."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.arithmetic import ceil_div
from pipeline.buffers.decode_set import MODEL_DTYPE
from pipeline.buffers.layer_plans import KV_PAGE_TOKENS, SCALE_BLOCK, LayerPlan, is_gate_up
from pipeline.buffers.layout import BufferSpec, Content
from pipeline.buffers.names import LayerBuffer, LinearBuffer
from pipeline.servers.derive import Workload
from pipeline.servers.shared.contiguous_layout import contiguous_rows
from pipeline.workload.linears import Linear, Role

FP8 = "float8_e4m3fn"


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes specs of buffers that live in the phase of one layer."""

    layer: LayerPlan

    def of_layer(
        self, buffer: LayerBuffer, dtype: str, *shape: int, content: int | Content = Content.UNSET
    ) -> BufferSpec:
        """One that the layer has once."""
        return self._spec(self.layer.names.layer(buffer), dtype, shape, content)

    def of_linear(
        self, linear: Linear, buffer: LinearBuffer, dtype: str, *shape: int, content: Content = Content.UNSET
    ) -> BufferSpec:
        """One of a linear's."""
        return self._spec(self.layer.names.linear(linear.name, buffer), dtype, shape, content)

    def _spec(self, name: str, dtype: str, shape: tuple[int, ...], content: int | Content) -> BufferSpec:
        return BufferSpec(name, dtype, shape, content, phases=frozenset({self.layer.phase}))


def layer_specs(layer: LayerPlan, workload: Workload, *, on_gpu: bool) -> list[BufferSpec]:
    """Operands of one dummy layer, live in its phase only. On the CPU all experts share one weight."""
    make = Maker(layer)
    specs = _own_specs(make, workload.facts.hidden)
    for linear in layer.linears:
        if linear.role is not Role.EXPERTS:
            specs += _linear_specs(make, linear)
    if layer.experts is not None:
        w13, w2 = layer.experts
        routes = min(workload.rules.routes_per_token, w13.groups)
        rows = expert_rows(layer, w13.groups, layer.tokens * routes)
        specs += _routing_specs(make, w13, routes, rows)
        specs.append(make.of_layer(LayerBuffer.ACTIVATED, MODEL_DTYPE, rows, w2.k))
        specs.append(make.of_layer(LayerBuffer.COMBINED, MODEL_DTYPE, layer.tokens, w13.k))
        for linear in (w13, w2):
            specs += _product_specs(make, linear, rows, (linear.groups if on_gpu else 1,))
        specs.append(make.of_layer(LayerBuffer.TOKEN_X, FP8, layer.tokens, w13.k))
        specs.append(make.of_layer(LayerBuffer.TOKEN_X_SCALE, "float32", layer.tokens, w13.k // SCALE_BLOCK))
    return specs


def expert_rows(layer: LayerPlan, num_groups: int, num_routes: int) -> int:
    """Rows of the experts' operands, in whichever layout the layer uses."""
    if layer.masked_rows is None:
        return contiguous_rows(num_routes, num_groups)
    return num_groups * layer.masked_rows


def _own_specs(make: Maker, hidden: int) -> list[BufferSpec]:
    """What is there whichever linears run: the hidden states, and what the attention itself reads and writes."""
    layer = make.layer
    shape = layer.geometry
    cache = (layer.requests, KV_PAGE_TOKENS)
    widest = max([hidden, *(linear.k for linear in layer.linears if layer.reads_a_part(linear))])
    specs = [
        make.of_layer(LayerBuffer.HIDDEN, MODEL_DTYPE, layer.tokens, hidden, content=Content.NORMAL),
        make.of_layer(LayerBuffer.NORMED, MODEL_DTYPE, layer.tokens, hidden),
        make.of_layer(LayerBuffer.NORM_WEIGHT, MODEL_DTYPE, widest, content=1),
        make.of_layer(LayerBuffer.K_CACHE, MODEL_DTYPE, *cache, shape.head, content=Content.NORMAL),
        make.of_layer(LayerBuffer.V_CACHE, MODEL_DTYPE, *cache, shape.v_head, content=Content.NORMAL),
        make.of_layer(LayerBuffer.ATTENDED, MODEL_DTYPE, layer.tokens, shape.heads, shape.v_head),
    ]
    if layer.query is None:
        query = (layer.tokens, shape.heads, shape.head)
        specs.append(make.of_layer(LayerBuffer.QUERY, MODEL_DTYPE, *query, content=Content.NORMAL))
    if layer.is_extend:
        seen = (KV_PAGE_TOKENS, layer.requests)
        specs.append(make.of_layer(LayerBuffer.SEEN, "int64", *seen, content=Content.POSITIONS))
    return specs


def _linear_specs(make: Maker, linear: Linear) -> list[BufferSpec]:
    tokens = make.layer.tokens
    specs = _product_specs(make, linear, tokens, ())
    if is_gate_up(linear):
        specs.append(make.of_linear(linear, LinearBuffer.ACTIVATED, MODEL_DTYPE, tokens, linear.n // 2))
    if make.layer.reads_a_part(linear):
        specs.append(make.of_linear(linear, LinearBuffer.NORMED, MODEL_DTYPE, tokens, linear.k))
    return specs


def _product_specs(make: Maker, linear: Linear, rows: int, outer: tuple[int, ...]) -> list[BufferSpec]:
    """Both operands with their scales, and the result; `outer`: a weight's axes before N, those of its experts."""
    k_blocks = linear.k // SCALE_BLOCK
    w = (*outer, linear.n, linear.k)
    w_scale = (*outer, ceil_div(linear.n, SCALE_BLOCK), k_blocks)
    return [
        make.of_linear(linear, LinearBuffer.X, FP8, rows, linear.k),
        make.of_linear(linear, LinearBuffer.X_SCALE, "float32", rows, k_blocks),
        make.of_linear(linear, LinearBuffer.W, FP8, *w, content=Content.FP8_BELOW_TWO),
        make.of_linear(linear, LinearBuffer.W_SCALE, "float32", *w_scale, content=Content.WEIGHT_SCALES),
        make.of_linear(linear, LinearBuffer.OUT, MODEL_DTYPE, rows, linear.n),
    ]


def _routing_specs(make: Maker, w13: Linear, routes: int, rows: int) -> list[BufferSpec]:
    """Which experts each token goes to, and in which row of their operands it lies."""
    tokens = make.layer.tokens
    return [
        make.of_layer(LayerBuffer.GATE, MODEL_DTYPE, w13.groups, w13.k, content=Content.NORMAL),
        make.of_layer(LayerBuffer.IDS, "int64", tokens, routes),
        make.of_layer(LayerBuffer.ROUTE_WEIGHTS, "float32", tokens, routes),
        make.of_layer(LayerBuffer.ROW_OF_ROUTE, "int64", tokens, routes),
        make.of_layer(LayerBuffer.GROUP_OF_ROW, "int32", rows),
        make.of_layer(LayerBuffer.MASKED_M, "int32", w13.groups),
    ]
