"""From a recipe to the whole layout: the decode set and the dummy layers' operands, sized after alignment."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pipeline.buffers.alignment import round_up
from pipeline.buffers.decode_set import MODEL_DTYPE, AdapterKind, DecodeSize, decode_specs
from pipeline.buffers.layout import BufferSpec, Layout, lay_out
from pipeline.workload.blocks import Geometry
from pipeline.workload.derive import Workload
from pipeline.workload.linears import ATTENDED, HIDDEN, Linear, Role
from pipeline.workload.parallel import Parallel
from pipeline.workload.servers import Server
from pipeline.workload.servers.sglang_m import contiguous_rows

SCALE_BLOCK = 128
KV_PAGE_TOKENS = 64
# The reference kernels need seconds for a layer of this many tokens, and minutes for a chunk.
EXTEND_TOKENS_ON_CPU = 128
# One step of a server that does not cut prefill: what SGLang's --max-prefill-tokens is by default.
UNCHUNKED_TOKENS = 16384
# MN-major fp32 scales are read 16 bytes at a time by the copy engine of sm_90.
TMA_ROWS = 4

MakeSpec = Callable[..., BufferSpec]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One distinct kind of layer of the deployment, in one shape of batch, and the phase in which its operands live."""

    phase: str
    linears: tuple[Linear, ...]
    """What DeepGEMM serves of it, in order; experts come last."""
    geometry: Geometry
    query: Linear | None
    """The linear whose output holds the query; None when it is not on DeepGEMM."""
    tokens: int
    """Rows of its operands: the largest decode step, or one chunk of prefill."""
    requests: int
    """Requests that share the tokens."""
    is_extend: bool
    """Whether it is shaped like prefill: requests of KV_PAGE_TOKENS new tokens each."""
    masked_rows: int | None
    """Rows of each expert's block in the masked layout; None means the contiguous layout."""

    @property
    def has_experts(self) -> bool:
        """Whether routed experts run on DeepGEMM's grouped kernels."""
        return any(linear.role is Role.EXPERTS for linear in self.linears)


@dataclass(frozen=True, slots=True)
class BufferPlan:
    """Everything `allocate` needs to know."""

    size: DecodeSize
    layers: tuple[LayerPlan, ...]
    layout: Layout


def decode_size(
    workload: Workload, parallel: Parallel, server: Server, kind: AdapterKind, *, row_multiple: int = 1
) -> DecodeSize:
    """Sizes of the decode set of one runner, after rounding the batch to what every parallel axis divides."""
    kind = kind.chosen(has_cuda_graphs=not server.disable_cuda_graph)
    eager = kind is AdapterKind.eager
    rules = workload.rules
    per_request = server.tokens_per_request
    largest = rules.decode_batch
    if eager and server.max_running_requests is not None:
        largest = server.max_running_requests
    multiple = math.lcm(rules.batch_multiple, row_multiple)
    batch = round_up(largest, multiple)
    prefill_tokens = max(rules.chunk, 0) if eager else 0
    return DecodeSize(
        kind=kind,
        max_batch=batch,
        tokens_per_request=per_request,
        max_tokens=round_up(max(prefill_tokens, batch * per_request), multiple),
        hidden=workload.facts.hidden,
        vocab=workload.facts.vocab,
        num_dp_ranks=parallel.attn_dp,
        multiple=multiple,
        has_pp_proxies=parallel.pp > 1,
        counts_unpadded_tokens=rules.counts_unpadded_tokens,
        is_multimodal=workload.facts.has_mrope,
        streams=workload.facts.streams,
    )


def plan_buffers(
    workload: Workload, parallel: Parallel, server: Server, kind: AdapterKind, *, on_gpu: bool
) -> BufferPlan:
    """The layout of the one allocation.

    On the CPU all experts share one weight, because the reference has no use for more.
    """
    size = decode_size(workload, parallel, server, kind, row_multiple=TMA_ROWS if on_gpu else 1)
    extend_tokens = extend_shape(workload, size, on_gpu=on_gpu)
    layers = distinct_layers(workload, size, extend_tokens=extend_tokens)
    specs = decode_specs(size)
    for layer in layers:
        specs += layer_specs(layer, workload, on_gpu=on_gpu)
    return BufferPlan(size, layers, lay_out(specs))


def extend_shape(workload: Workload, size: DecodeSize, *, on_gpu: bool) -> int:
    """Tokens of the prefill-shaped dummy batch: one chunk; on the CPU at most EXTEND_TOKENS_ON_CPU."""
    chunk = workload.rules.chunk if workload.rules.chunk > 0 else UNCHUNKED_TOKENS
    wanted = chunk if on_gpu else min(chunk, EXTEND_TOKENS_ON_CPU)
    return round_up(wanted, math.lcm(size.multiple, KV_PAGE_TOKENS))


def distinct_layers(workload: Workload, size: DecodeSize, *, extend_tokens: int) -> tuple[LayerPlan, ...]:
    """A decode-shaped and an extend-shaped plan for each kind of layer that any rank holds.

    Kinds differ in their attention and in having experts. Prefill uses the contiguous layout of experts, decode
    behind an all-to-all backend the masked one.
    """
    rules = workload.rules
    masked = workload.rules.masked_rows(size.decode_tokens)
    tp = rules.widths().attention
    several = len({layer.attention.kind for layer in workload.facts.layers}) > 1
    decode: dict[str, LayerPlan] = {}
    extend: dict[str, LayerPlan] = {}
    for stage in workload.stages:
        for layer in stage.layers:
            kind = workload.facts.layers[layer]
            phase = f"forward.{f'{kind.attention.kind}_' if several else ''}{'moe' if kind.has_experts else 'dense'}"
            if phase in decode:
                continue
            linears = dummy_linears(workload, [linear for linear in stage.linears if layer in linear.layers])
            absorbed = tuple(linear for linear in linears if linear.role is not Role.KV_UP)
            geometry = kind.attention.geometry(tp)
            query = next((linear for linear in linears if linear.name == geometry.query), None)
            rows = masked if kind.has_experts else None
            decode[phase] = LayerPlan(phase, absorbed, geometry, query, size.decode_tokens, size.max_batch, False, rows)
            launched = absorbed if rules.absorbs_kv_up else linears
            requests = extend_tokens // KV_PAGE_TOKENS
            extend[phase] = LayerPlan(f"{phase}_extend", launched, geometry, query, extend_tokens, requests, True, None)
    return (*decode.values(), *extend.values())


def dummy_linears(workload: Workload, linears: Sequence[Linear]) -> tuple[Linear, ...]:
    """What a dummy layer launches: block-FP8 linears that DeepGEMM takes, and experts it could take under other flags.

    The draft's layer is not among them: it is launched as one more layer of a kind that is there already.
    """
    quantization = workload.facts.quantization
    if quantization.block != (SCALE_BLOCK, SCALE_BLOCK):
        return ()
    found = [
        linear
        for linear in linears
        if linear.role not in (Role.EXPERTS, Role.DRAFT) and workload.rules.reason(linear) is None
    ]
    experts = [linear for linear in linears if linear.role is Role.EXPERTS]
    own_scheme = workload.facts.experts is not None and workload.facts.experts.scheme is not None
    fits = all(linear.n % SCALE_BLOCK == 0 and linear.k % SCALE_BLOCK == 0 for linear in experts)
    return tuple(found + (experts if fits and not own_scheme and not quantization.is_compressed_tensors else []))


def layer_specs(layer: LayerPlan, workload: Workload, *, on_gpu: bool) -> list[BufferSpec]:
    """Operands of one dummy layer, live in its phase only."""
    facts = workload.facts
    tokens = layer.tokens
    phase = frozenset({layer.phase})
    shape = layer.geometry

    def buffer(name: str, dtype: str, *shape: int) -> BufferSpec:
        return BufferSpec(f"{layer.phase}.{name}", dtype, shape, fill=None, phases=phase)

    widest = max([facts.hidden, *(linear.k for linear in layer.linears if needs_input(linear, shape))])
    specs = [
        buffer("hidden", MODEL_DTYPE, tokens, facts.hidden),
        buffer("normed", MODEL_DTYPE, tokens, facts.hidden),
        buffer("norm_weight", MODEL_DTYPE, widest),
        buffer("k_cache", MODEL_DTYPE, layer.requests, KV_PAGE_TOKENS, shape.head),
        buffer("v_cache", MODEL_DTYPE, layer.requests, KV_PAGE_TOKENS, shape.v_head),
        buffer("attended", MODEL_DTYPE, tokens, shape.heads, shape.v_head),
    ]
    if layer.query is None:
        specs.append(buffer("query", MODEL_DTYPE, tokens, shape.heads, shape.head))
    if layer.is_extend:
        specs.append(buffer("seen", "int64", KV_PAGE_TOKENS, layer.requests))
    for linear in layer.linears:
        if linear.role is Role.EXPERTS:
            continue
        specs += _gemm_specs(buffer, linear, tokens)
        if linear.name.endswith("gate_up_proj"):
            specs.append(buffer(f"{linear.name}.activated", MODEL_DTYPE, tokens, linear.n // 2))
        if needs_input(linear, shape):
            specs.append(buffer(f"{linear.name}.normed", MODEL_DTYPE, tokens, linear.k))
    if layer.has_experts:
        specs += _expert_specs(buffer, layer, workload.rules.routes_per_token, tokens, distinct=on_gpu)
    return specs


def needs_input(linear: Linear, shape: Geometry) -> bool:
    """Whether an attention linear reads neither the hidden states nor all of what was attended."""
    if linear.role not in (Role.ATTENTION, Role.KV_UP, Role.INDEXER) or linear.source == HIDDEN:
        return False
    return linear.source != ATTENDED or linear.k != shape.heads * shape.v_head


def expert_rows(layer: LayerPlan, num_groups: int, num_routes: int) -> int:
    """Rows of the experts' operands, in whichever layout the layer uses."""
    if layer.masked_rows is None:
        return contiguous_rows(num_routes, num_groups)
    return num_groups * layer.masked_rows


def _gemm_specs(buffer: MakeSpec, linear: Linear, tokens: int) -> list[BufferSpec]:
    return [
        buffer(f"{linear.name}.x", "float8_e4m3fn", tokens, linear.k),
        buffer(f"{linear.name}.x_scale", "float32", tokens, linear.k // SCALE_BLOCK),
        *_weight_specs(buffer, linear, ()),
        buffer(f"{linear.name}.out", MODEL_DTYPE, tokens, linear.n),
    ]


def _weight_specs(buffer: MakeSpec, linear: Linear, outer: tuple[int, ...]) -> list[BufferSpec]:
    scale_rows = -(-linear.n // SCALE_BLOCK)
    return [
        buffer(f"{linear.name}.w", "float8_e4m3fn", *outer, linear.n, linear.k),
        buffer(f"{linear.name}.w_scale", "float32", *outer, scale_rows, linear.k // SCALE_BLOCK),
    ]


def _expert_specs(
    buffer: MakeSpec, layer: LayerPlan, routes_per_token: int, tokens: int, *, distinct: bool
) -> list[BufferSpec]:
    w13, w2 = (linear for linear in layer.linears if linear.role is Role.EXPERTS)
    groups = w13.groups
    routes = min(routes_per_token, w13.groups)
    rows = expert_rows(layer, groups, tokens * routes)
    specs = [
        buffer("gate", MODEL_DTYPE, groups, w13.k),
        buffer("ids", "int64", tokens, routes),
        buffer("route_weights", "float32", tokens, routes),
        buffer("row_of_route", "int64", tokens, routes),
        buffer("group_of_row", "int32", rows),
        buffer("masked_m", "int32", groups),
        buffer("activated", MODEL_DTYPE, rows, w2.k),
        buffer("combined", MODEL_DTYPE, tokens, w13.k),
    ]
    for linear in (w13, w2):
        specs += [
            buffer(f"{linear.name}.x", "float8_e4m3fn", rows, linear.k),
            buffer(f"{linear.name}.x_scale", "float32", rows, linear.k // SCALE_BLOCK),
            *_weight_specs(buffer, linear, (groups if distinct else 1,)),
            buffer(f"{linear.name}.out", MODEL_DTYPE, rows, linear.n),
        ]
    specs += [
        buffer("token.x", "float8_e4m3fn", tokens, w13.k),
        buffer("token.x_scale", "float32", tokens, w13.k // SCALE_BLOCK),
    ]
    return specs
