from __future__ import annotations

from typing import Any

import pytest

from pipeline.buffers.decode_set import AdapterKind
from pipeline.engine.errors import CapacityError
from pipeline.slots import BATCH, DECODE_BUFFERS, AlignedBatch
from pipeline.workload.parallel import A2A, Parallel
from stages.adapter import Adapter
from stages.align import Align
from stages.allocate import Allocate
from stages.plan import Plan
from tests.servers.recipes import tiny
from tests.stages.runs import NOT_KNOWN, Bench, recipe_of, recipe_without_rules, skipped

# Context parallel 2 (padding 4) and attention tp 3 share the multiple 12.
SYNCED = Parallel(tp=6, attn_cp=2, moe_dense_tp_size=1)
SIX = {"num_attention_heads": 6, "moe_intermediate_size": 768}
BOTH = [AdapterKind.decode_graph, AdapterKind.eager]


def synced(**options: Any) -> Bench:
    flags: dict[str, Any] = {"cuda_graph_max_bs": 30, "max_running_requests": 30, **options}
    return Bench(recipe_of(tiny(**SIX), SYNCED, **flags))


def aligned(bench: Bench, batch: int | None = None) -> AlignedBatch:
    bench.run(Plan(), Allocate(), Adapter(), Align(batch=batch))
    return bench.context.read(BATCH)


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.name)
def test_the_default_is_the_largest_batch_rounded_to_every_axis(kind: AdapterKind) -> None:
    assert aligned(synced(adapter=kind)) == AlignedBatch(requests=36, multiple=12)


@pytest.mark.parametrize("kind", BOTH, ids=lambda kind: kind.name)
@pytest.mark.parametrize(("batch", "requests"), [(1, 12), (12, 12), (13, 24), (30, 36), (36, 36)])
def test_a_batch_is_rounded_up_by_one_lcm(kind: AdapterKind, batch: int, requests: int) -> None:
    bench = synced(adapter=kind)
    assert aligned(bench, batch).requests == requests
    assert bench.context.read(DECODE_BUFFERS).view(requests)["seq_lens"].shape == (requests,)


def test_a_batch_that_rounds_past_the_buffers_is_refused() -> None:
    with pytest.raises(
        CapacityError, match=r"align\.batch 37 rounds up to 48, the buffers hold 36; lower align\.batch"
    ):
        aligned(synced(), 37)


def test_without_mlp_sync_any_batch_is_kept() -> None:
    assert aligned(Bench(), 7) == AlignedBatch(requests=7, multiple=1)


def test_several_tokens_a_request_do_not_change_the_batch() -> None:
    parallel = Parallel(tp=4, attn_dp=2, moe_a2a_backend=A2A.deepep)
    bench = Bench(recipe_of(parallel=parallel, cuda_graph_max_bs=7, tokens_per_request=2))
    assert aligned(bench) == AlignedBatch(requests=8, multiple=2)


def test_aligning_allocates_nothing() -> None:
    bench = synced()
    aligned(bench)
    assert bench.allocated["align"] == 0


@pytest.mark.parametrize(
    ("batch", "errors"),
    [
        (None, []),
        (1, []),
        (0, ["align.batch must be at least 1, got 0"]),
        (-3, ["align.batch must be at least 1, got -3"]),
    ],
    ids=str,
)
def test_a_batch_below_one_is_an_error_before_the_run(batch: int | None, errors: list[str]) -> None:
    assert Align(batch=batch).config_errors(recipe_of()) == errors


def test_without_rules_it_is_skipped_with_the_reason() -> None:
    bench = Bench(recipe_without_rules())
    result = skipped(bench.run(Plan(), Allocate(), Adapter(), Align()))
    assert result.reason.startswith(NOT_KNOWN)
