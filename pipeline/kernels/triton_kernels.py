"""The small kernels between the GEMMs, in Triton: they write into what they are given and allocate nothing.

FP8 scales are kept MN-major: element (t, b) of a [T, K/128] scale lies at b * T + t. That is the layout DeepGEMM's copy
engine reads, so no layout kernel and no temporary is needed; a row-major scale would cost both.
"""

from __future__ import annotations

import triton
import triton.language as tl

FP8_E4M3_MAX = tl.constexpr(448.0)  # largest finite float8_e4m3fn
LEAST_BLOCK_MAX = tl.constexpr(1e-4)


@triton.jit
def quantize_fp8(x, out, out_scale, group_rows, K: tl.constexpr, BLOCK: tl.constexpr):
    """One program a (row, block of 128): scale to the FP8 range, store data and MN-major scale."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    columns = block * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + row * K + columns).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(values)), LEAST_BLOCK_MAX) / FP8_E4M3_MAX
    tl.store(out + row * K + columns, (values / scale).to(out.dtype.element_ty))
    group = row // group_rows
    inside = row % group_rows
    tl.store(out_scale + group * group_rows * (K // BLOCK) + block * group_rows + inside, scale)


@triton.jit
def silu_and_mul(gate_up, out, K: tl.constexpr, BLOCK: tl.constexpr):
    """One program a (row, block): silu of the first K columns times the second K."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < K
    gate = tl.load(gate_up + row * 2 * K + columns, mask=inside).to(tl.float32)
    up = tl.load(gate_up + row * 2 * K + K + columns, mask=inside).to(tl.float32)
    tl.store(out + row * K + columns, (gate * tl.sigmoid(gate) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit
def attention(
    q,
    k,
    v,
    seq_lens,
    out,
    scale,
    q_stride,
    out_stride,
    H: tl.constexpr,
    S: tl.constexpr,
    D: tl.constexpr,
    D2: tl.constexpr,
    V: tl.constexpr,
):
    """One program a (request, head): all heads share the request's cached rows."""
    request = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    cached = tl.arange(0, S)
    length = tl.load(seq_lens + request)
    dims = tl.arange(0, D2)
    query = tl.load(q + request * q_stride + head * D + dims, mask=dims < D, other=0).to(tl.float32)
    keys = tl.load(k + (request * S + cached)[:, None] * D + dims[None, :], mask=(dims < D)[None, :], other=0)
    scores = tl.sum(keys.to(tl.float32) * query[None, :], axis=1) * scale
    scores = tl.where(cached < length, scores, float("-inf"))
    weights = tl.exp(scores - tl.max(scores))
    weights = weights / tl.sum(weights)
    columns = tl.arange(0, V)
    values = tl.load(v + (request * S + cached)[:, None] * V + columns[None, :]).to(tl.float32)
    result = tl.sum(values * weights[:, None], axis=0)
    tl.store(out + request * out_stride + head * V + columns, result.to(out.dtype.element_ty))


@triton.jit
def route(
    x, gate, ids, route_weights, D: tl.constexpr, E: tl.constexpr, E2: tl.constexpr, R: tl.constexpr, STEP: tl.constexpr
):
    """One program a token: sigmoid scores of all experts, then the R largest, one after the other."""
    token = tl.program_id(0).to(tl.int64)
    experts = tl.arange(0, E2)
    logits = tl.zeros((E2,), tl.float32)
    for start in range(0, D, STEP):
        dims = start + tl.arange(0, STEP)
        inside = (experts < E)[:, None] & (dims < D)[None, :]
        row = tl.load(x + token * D + dims, mask=dims < D, other=0).to(tl.float32)
        block = tl.load(gate + experts[:, None] * D + dims[None, :], mask=inside, other=0).to(tl.float32)
        logits += tl.sum(block * row[None, :], axis=1)
    scores = tl.where(experts < E, tl.sigmoid(logits), -1.0)
    left = scores
    total = 0.0
    for _ in tl.static_range(R):
        best = tl.max(left)
        total += best
        left = tl.where(experts == tl.argmax(left, axis=0), -2.0, left)
    left = scores
    for position in tl.static_range(R):
        chosen = tl.argmax(left, axis=0)
        tl.store(ids + token * R + position, chosen.to(tl.int64))
        tl.store(route_weights + token * R + position, tl.max(left) / total)
        left = tl.where(experts == chosen, -2.0, left)


@triton.jit
def dispatch(
    ids,
    row_of_route,
    masked_m,
    group_of_row,
    rows_per_group,
    num_routes,
    ALIGNED: tl.constexpr,
    ROUTES: tl.constexpr,
    ALIGNMENT: tl.constexpr,
):
    """One program for each expert: count its routes, give each a row, note the count or the rows' group.

    Aligned (contiguous) layout: an expert's first row is the sum of the padded counts of the experts before it.
    """
    group = tl.program_id(0)
    places = tl.arange(0, ROUTES)
    count = 0
    before = 0
    for start in range(0, num_routes, ROUTES):
        chosen = tl.load(ids + start + places, mask=start + places < num_routes, other=-1)
        count += tl.sum((chosen == group).to(tl.int32))
    if ALIGNED:
        for earlier in range(group):
            earlier_count = 0
            for start in range(0, num_routes, ROUTES):
                chosen = tl.load(ids + start + places, mask=start + places < num_routes, other=-1)
                earlier_count += tl.sum((chosen == earlier).to(tl.int32))
            before += (earlier_count + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    else:
        before = group * rows_per_group
        tl.store(masked_m + group, count)
    given = 0
    for start in range(0, num_routes, ROUTES):
        chosen = tl.load(ids + start + places, mask=start + places < num_routes, other=-1)
        mine = (chosen == group).to(tl.int32)
        position = given + tl.cumsum(mine, axis=0) - 1
        tl.store(row_of_route + start + places, (before + position).to(tl.int64), mask=mine == 1)
        given += tl.sum(mine)
    if ALIGNED:
        for start in range(0, count, ROUTES):
            tl.store(group_of_row + before + start + places, group, mask=start + places < count)


@triton.jit
def fill_int32(out, value, count, BLOCK: tl.constexpr):
    """out[:count] = value."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, value, mask=places < count)


@triton.jit
def scatter_rows(x, row_of_route, out, K: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    """One program a (route, block): out[row of route] = x[token of route], bytes as they are."""
    route = tl.program_id(0)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(row_of_route + route)
    values = tl.load(x + (route // R).to(tl.int64) * K + columns, mask=columns < K)
    tl.store(out + row * K + columns, values, mask=columns < K)


@triton.jit
def scatter_scales(
    x_scale, row_of_route, out_scale, num_tokens, group_rows, B: tl.constexpr, B2: tl.constexpr, R: tl.constexpr
):
    """One program a route: the same for MN-major scales with B blocks a row."""
    route = tl.program_id(0)
    blocks = tl.arange(0, B2)
    row = tl.load(row_of_route + route)
    values = tl.load(x_scale + blocks * num_tokens + route // R, mask=blocks < B)
    group = row // group_rows
    inside = row % group_rows
    tl.store(out_scale + group * group_rows * B + blocks * group_rows + inside, values, mask=blocks < B)


@triton.jit
def combine(y, row_of_route, route_weights, out, D: tl.constexpr, R: tl.constexpr, BLOCK: tl.constexpr):
    """One program a (token, block): the weighted sum of the token's routes."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for position in tl.static_range(R):
        row = tl.load(row_of_route + token * R + position)
        weight = tl.load(route_weights + token * R + position)
        total += weight * tl.load(y + row * D + columns, mask=columns < D, other=0).to(tl.float32)
    tl.store(out + token * D + columns, total.to(out.dtype.element_ty), mask=columns < D)
