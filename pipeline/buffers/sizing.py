"""From a recipe to the whole layout: the decode set and the dummy layers' operands, sized after alignment."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.buffers.alignment import round_up
from pipeline.buffers.decode_set import MODEL_DTYPE, AdapterKind, DecodeSize, decode_specs
from pipeline.buffers.layout import BufferSpec, Layout, lay_out
from pipeline.workload.derive import StageLayers, Workload
from pipeline.workload.linears import Linear, Role
from pipeline.workload.parallel import Parallel
from pipeline.workload.servers import Server, sglang, sglang_batches

SCALE_BLOCK = 128
KV_PAGE_TOKENS = 64
# The reference kernels need seconds for a layer of this many tokens, and minutes for a chunk.
EXTEND_TOKENS_ON_CPU = 128
# MN-major fp32 scales are read 16 bytes at a time by the copy engine of sm_90.
TMA_ROWS = 4

MakeSpec = Callable[..., BufferSpec]


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """One distinct kind of layer of the deployment, in one shape of batch, and the phase in which its operands live."""

    phase: str
    linears: tuple[Linear, ...]
    has_experts: bool
    tokens: int
    """Rows of its operands: the largest decode step, or one chunk of prefill."""
    requests: int
    """Requests that share the tokens."""
    is_extend: bool
    """Whether it is shaped like prefill: requests of KV_PAGE_TOKENS new tokens each."""
    masked_rows: int | None
    """Rows of each expert's block in the masked layout; None means the contiguous layout."""


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
    per_request = server.tokens_per_request
    largest = workload.decode_batch
    if eager and server.max_running_requests is not None:
        largest = server.max_running_requests
    multiple = math.lcm(sglang_batches.batch_multiple(parallel), row_multiple)
    batch = round_up(largest, multiple)
    prefill_tokens = max(workload.chunk, 0) if eager else 0
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
        counts_unpadded_tokens=sglang_batches.counts_unpadded_tokens(parallel),
    )


def plan_buffers(
    workload: Workload, parallel: Parallel, server: Server, kind: AdapterKind, *, on_gpu: bool
) -> BufferPlan:
    """The layout of the one allocation.

    On the CPU all experts share one weight, because the reference has no use for more.
    """
    size = decode_size(workload, parallel, server, kind, row_multiple=TMA_ROWS if on_gpu else 1)
    extend_tokens = extend_shape(workload, size, on_gpu=on_gpu)
    layers = distinct_layers(workload, parallel, server, size, extend_tokens=extend_tokens)
    specs = decode_specs(size)
    for layer in layers:
        specs += layer_specs(layer, workload, parallel, on_gpu=on_gpu)
    return BufferPlan(size, layers, lay_out(specs))


def extend_shape(workload: Workload, size: DecodeSize, *, on_gpu: bool) -> int:
    """Tokens of the prefill-shaped dummy batch: one chunk; on the CPU at most EXTEND_TOKENS_ON_CPU."""
    chunk = workload.chunk if workload.chunk > 0 else sglang.DEFAULT_M_MAX
    wanted = chunk if on_gpu else min(chunk, EXTEND_TOKENS_ON_CPU)
    return round_up(wanted, math.lcm(size.multiple, KV_PAGE_TOKENS))


def distinct_layers(
    workload: Workload, parallel: Parallel, server: Server, size: DecodeSize, *, extend_tokens: int
) -> tuple[LayerPlan, ...]:
    """A decode-shaped and an extend-shaped plan for each kind of layer that any rank holds: dense, and with experts.

    Prefill uses the contiguous layout, decode behind an all-to-all backend the masked one.
    """
    decode_tokens = size.decode_tokens
    # A dummy batch may be larger than the dispatcher's limit; an expert still sees each token at most once.
    dispatched = max(decode_tokens, sglang_batches.masked_rows(decode_tokens, parallel))
    masked = dispatched if parallel.moe_a2a_backend.is_used else None
    absorbs = sglang.kv_up_not_a_gemm(server, parallel) is not None
    decode: dict[str, LayerPlan] = {}
    extend: dict[str, LayerPlan] = {}
    for stage in workload.stages:
        for layer in stage.layers:
            has_experts = workload.facts.is_moe(layer)
            phase = "forward.moe" if has_experts else "forward.dense"
            if phase in decode:
                continue
            linears = _linears_of(stage, layer)
            absorbed = tuple(linear for linear in linears if linear.role is not Role.KV_UP)
            rows = masked if has_experts else None
            decode[phase] = LayerPlan(phase, absorbed, has_experts, decode_tokens, size.max_batch, False, rows)
            launched = absorbed if absorbs else linears
            requests = extend_tokens // KV_PAGE_TOKENS
            extend[phase] = LayerPlan(f"{phase}_extend", launched, has_experts, extend_tokens, requests, True, None)
    return (*decode.values(), *extend.values())


def layer_specs(layer: LayerPlan, workload: Workload, parallel: Parallel, *, on_gpu: bool) -> list[BufferSpec]:
    """Operands of one dummy layer, live in its phase only."""
    facts, tokens, phase = workload.facts, layer.tokens, frozenset({layer.phase})

    def buffer(name: str, dtype: str, *shape: int) -> BufferSpec:
        return BufferSpec(f"{layer.phase}.{name}", dtype, shape, fill=None, phases=phase)

    heads = facts.heads // parallel.attn_tp
    specs = [
        buffer("hidden", MODEL_DTYPE, tokens, facts.hidden),
        buffer("normed", MODEL_DTYPE, tokens, facts.hidden),
        buffer("norm_weight", MODEL_DTYPE, facts.hidden),
        buffer("q_normed", MODEL_DTYPE, tokens, facts.q_lora_rank or facts.hidden),
        buffer("k_cache", MODEL_DTYPE, layer.requests, KV_PAGE_TOKENS, facts.nope + facts.rope),
        buffer("v_cache", MODEL_DTYPE, layer.requests, KV_PAGE_TOKENS, facts.v_head),
        buffer("attended", MODEL_DTYPE, tokens, heads, facts.v_head),
    ]
    if layer.is_extend:
        specs.append(buffer("seen", "int64", KV_PAGE_TOKENS, layer.requests))
    for linear in layer.linears:
        if linear.role is Role.EXPERTS:
            continue
        specs += _gemm_specs(buffer, linear, tokens)
        if linear.name.endswith("gate_up_proj"):
            specs.append(buffer(f"{linear.name}.activated", MODEL_DTYPE, tokens, linear.n // 2))
        if linear.role is Role.KV_UP:
            specs.append(buffer("kv_normed", MODEL_DTYPE, tokens, linear.k))
    if layer.has_experts:
        specs += _expert_specs(buffer, layer, workload.routes_per_token, tokens, distinct=on_gpu)
    return specs


def expert_rows(layer: LayerPlan, num_groups: int, num_routes: int) -> int:
    """Rows of the experts' operands, in whichever layout the layer uses."""
    if layer.masked_rows is None:
        return sglang.contiguous_rows(num_routes, num_groups)
    return num_groups * layer.masked_rows


def _linears_of(stage: StageLayers, layer: int) -> tuple[Linear, ...]:
    return tuple(linear for linear in stage.linears if layer in linear.layers)


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
    groups, routes = w13.groups, min(routes_per_token, w13.groups)
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
