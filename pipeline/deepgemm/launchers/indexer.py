"""Kernels of a sparse-attention indexer: scores of prefill and of decode, and the schedule of the latter.

SGLang calls them by the names of its wheels, vLLM's own copy of the library has one function for FP8 and FP4: there
queries come as (values, scales), and on sm_100 each row is a request of its own, named by `indices`.
"""

from __future__ import annotations

from typing import Any

import torch

from pipeline.deepgemm.launch_spec import LaunchSpec
from pipeline.deepgemm.launchers.operands import (
    BF16,
    Launch,
    empty,
    first_rows,
    fp8,
    has,
    int32,
    is_blackwell,
    library,
    num_sms,
)

# One page of the indexer's cache: 64 keys of 128 bytes and an fp32 scale each.
PAGE_TOKENS = 64
KEY_BYTES = 132
MAX_PAGES = 16
# On sm_90 upstream runs four query tokens of a request on a pair of blocks, so its schedule has half the slots.
PAIRED_NEXT_N = 4


def mqa_logits(spec: LaunchSpec) -> Launch:
    """Scores of M queries of n heads of k over as many keys; option compressed: packed results (SGLang)."""
    if not has("fp8_mqa_logits"):
        return upstream_mqa_logits(spec)
    launch = library("fp8_mqa_logits")
    is_compressed = bool(spec.options.get("compressed"))
    q_MHK = fp8(spec.max_m, spec.n, spec.k)
    keys = (fp8(spec.max_m, spec.k), empty(spec.max_m))
    weights_MH = empty(spec.max_m, spec.n)
    ends_M = int32(spec.max_m)

    def run(m: int) -> None:
        more = {"max_seqlen_k": m} if is_compressed else {}
        launch(q_MHK[:m], first_rows(keys, m), weights_MH[:m], ends_M[:m], ends_M[:m], clean_logits=False, **more)

    return run


def upstream_mqa_logits(spec: LaunchSpec) -> Launch:
    """The same through fp8_fp4_mqa_logits: packed scales and bf16 weights on sm_100, fp32 before."""
    launch = library("fp8_fp4_mqa_logits")
    is_mx = is_blackwell()
    q_MHK = fp8(spec.max_m, spec.n, spec.k)
    weights_MH = empty(spec.max_m, spec.n, dtype=BF16 if is_mx else torch.float32)
    ends_M = int32(spec.max_m)
    keys = fp8(spec.max_m, spec.k), int32(spec.max_m) if is_mx else empty(spec.max_m)
    scales_MH = int32(spec.max_m, spec.n) if is_mx else None

    def run(m: int) -> None:
        q = q_MHK[:m], None if scales_MH is None else scales_MH[:m]
        launch(q, first_rows(keys, m), weights_MH[:m], ends_M[:m], ends_M[:m], m)

    return run


def paged_mqa_logits(spec: LaunchSpec) -> Launch:
    """Scores of M requests over their pages; option next_n: query tokens of one request."""
    next_n = spec.options.get("next_n", 1)
    pages = empty(MAX_PAGES, PAGE_TOKENS, 1, KEY_BYTES, dtype=torch.uint8)
    table_BP = int32(spec.max_m, MAX_PAGES)
    q_BTHK = fp8(spec.max_m, next_n, spec.n, spec.k)
    lens_BT = int32(spec.max_m, next_n)
    longest = MAX_PAGES * PAGE_TOKENS
    schedule = int32(schedule_slots(next_n) + 1, 2)
    if has("fp8_paged_mqa_logits"):
        launch = library("fp8_paged_mqa_logits")
        weights_MH = empty(spec.max_m * next_n, spec.n)

        def run_sgl(m: int) -> None:
            of_requests = q_BTHK[:m], pages, weights_MH[: m * next_n], lens_BT[:m], table_BP[:m]
            launch(*of_requests, schedule, longest, clean_logits=False)

        return run_sgl
    launch = library("fp8_fp4_paged_mqa_logits")
    is_mx = is_blackwell()
    weights_MH = empty(spec.max_m * next_n, spec.n, dtype=BF16 if is_mx else torch.float32)
    scales_BTH = int32(spec.max_m, next_n, spec.n) if is_mx else None

    def run(m: int) -> None:
        q = q_BTHK[:m], None if scales_BTH is None else scales_BTH[:m]
        launch(q, pages, weights_MH[: m * next_n], lens_BT[:m], table_BP[:m], schedule, longest, **varlen(m))

    return run


def paged_mqa_metadata(spec: LaunchSpec) -> Launch:
    """The schedule of M requests; option next_n as above."""
    launch = library("get_paged_mqa_logits_metadata")
    next_n = spec.options.get("next_n", 1)
    lens_BT = int32(spec.max_m, next_n)
    slots = schedule_slots(next_n)
    return lambda m: launch(lens_BT[:m], PAGE_TOKENS, slots, **varlen(m))


def schedule_slots(next_n: int) -> int:
    """Blocks that a schedule divides the pages over."""
    is_paired = next_n == PAIRED_NEXT_N and not is_blackwell() and not has("fp8_paged_mqa_logits")
    return num_sms() // (2 if is_paired else 1)


def varlen(m: int) -> dict[str, Any]:
    """On sm_100 upstream wants the request of each row."""
    return {"indices": int32(m)} if is_blackwell() and not has("fp8_paged_mqa_logits") else {}
