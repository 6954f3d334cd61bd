from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.buffers.decode_set import AdapterKind
from pipeline.engine.errors import SlotError
from pipeline.engine.stage import Result
from pipeline.figures import ForwardFigures
from pipeline.slots import BAKED, BUFFER_PLAN, DECODE_BUFFERS, FORWARD, RESERVED, Baked, ForwardResult
from pipeline.workload.parallel import A2A, Parallel
from stages.adapter import Adapter
from stages.align import Align
from stages.allocate import Allocate
from stages.forward import Forward
from stages.plan import Plan
from tests.servers.recipes import DEEP_GEMM, tiny
from tests.stages.runs import (
    NOT_KNOWN,
    Bench,
    RecordingKernels,
    completed,
    figures_of,
    recipe_of,
    recipe_without_rules,
    skipped,
)

DEEPEP = Parallel(tp=2, attn_dp=2, moe_a2a_backend=A2A.deepep)
SYNCED = Parallel(tp=6, attn_cp=2, moe_dense_tp_size=1)
SIX = {"num_attention_heads": 6, "moe_intermediate_size": 768}
RECIPES: dict[str, dict[str, Any]] = {
    "contiguous": {**DEEP_GEMM},
    "masked": {"parallel": DEEPEP},
    "two tokens": {"parallel": DEEPEP, "tokens_per_request": 2},
    "eager": {"adapter": AdapterKind.eager, "tokens_per_request": 2},
    "pipeline": {"parallel": Parallel(pp=2)},
}


class CachingKernels(RecordingKernels):
    """Reference kernels that note which published cache they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.caches: list[Path] = []

    def use_cache(self, warm_cache: Path) -> None:
        """Note the folder."""
        self.caches.append(warm_cache)


def before_forward(bench: Bench) -> Bench:
    bench.run(Plan(), Allocate(), Adapter(), Align())
    return bench


def forwarded(**options: Any) -> tuple[Bench, Result, ForwardResult]:
    bench = before_forward(Bench(recipe_of(**options)))
    result = completed(bench.run(Forward()))
    return bench, result, bench.context.read(FORWARD)


@pytest.mark.parametrize("name", RECIPES)
def test_after_allocate_no_stage_allocates_a_byte(name: str) -> None:
    bench, _, _ = forwarded(**RECIPES[name])
    assert {stage: bench.allocated[stage] for stage in ("adapter", "align", "forward")} == dict.fromkeys(
        ("adapter", "align", "forward"), 0
    )
    assert len(bench.kernels.allocations) == 1


@pytest.mark.parametrize("name", RECIPES)
def test_the_forward_leaves_guards_and_addresses_as_they_were(name: str) -> None:
    bench, _, _ = forwarded(**RECIPES[name])
    reserved = bench.context.read(RESERVED)
    assert reserved.arena.check_guards() == []
    assert reserved.arena.addresses() == reserved.addresses


def test_the_forward_runs_every_kind_of_layer_at_the_aligned_batch() -> None:
    _, result, forward = forwarded(**DEEP_GEMM)
    # Dense: three of attention and two; experts: three, two shared and two routed; prefill has kv_b_proj besides.
    assert (forward.num_gemms, forward.batch) == (5 + 7 + 6 + 8, 8)
    assert figures_of(ForwardFigures, result) == ForwardFigures(
        gemms=26, batch=8, extend_tokens=64, graphs_replayed=None, compiled=None
    )


@pytest.mark.parametrize("kind", [AdapterKind.decode_graph, AdapterKind.eager], ids=lambda kind: kind.name)
def test_the_batch_of_the_forward_suits_every_parallel_axis(kind: AdapterKind) -> None:
    flags = {"cuda_graph_max_bs": 7, "max_running_requests": 7}
    _, _, forward = forwarded(model=tiny(**SIX), parallel=SYNCED, adapter=kind, **flags)
    assert forward.batch == 12


def test_the_forward_sees_no_sequence_of_length_zero() -> None:
    bench = before_forward(Bench())
    buffers = bench.context.read(DECODE_BUFFERS)
    for name in ("seq_lens", "seq_lens_cpu"):
        buffers.fields[name].zero_()
    bench.run(Forward())
    assert bench.context.read(FORWARD).min_seq_len == 1


@pytest.mark.parametrize(("parallel", "present"), [(Parallel(), False), (DEEPEP, True)], ids=["plain", "deepep"])
def test_the_forward_names_the_fields_it_saw_and_no_absent_one(parallel: Parallel, present: bool) -> None:
    _, _, forward = forwarded(parallel=parallel)
    assert ("num_token_non_padded" in forward.fields) is present
    assert "mrope_positions" not in forward.fields
    assert list(forward.fields) == sorted(forward.fields)


def test_progress_counts_the_kinds_of_layer() -> None:
    bench, _, _ = forwarded()
    progress = [(event.data["what"], event.data["done"], event.data["total"]) for event in bench.events]
    assert progress == [("layers", done, 4) for done in range(5)], "dense and with experts, decode and prefill"


def test_the_stage_keeps_to_its_contract() -> None:
    bench = before_forward(Bench())
    reads = [slot for slot in (*Forward.reads, *Forward.may_read) if slot is not BUFFER_PLAN]
    narrow = bench.context.scoped("forward", reads=reads, writes=Forward.writes, ancestors=dict(bench.ended))
    with pytest.raises(SlotError, match="reads 'buffer_plan' without declaring it"):
        Forward().run(narrow)


@pytest.mark.parametrize(
    ("chunk", "prefill"),
    [(64, ""), (1000, ", prefill of 128 tokens (a chunk's 1000 take too long on the CPU)")],
    ids=["whole chunk", "cut"],
)
def test_the_summary_says_when_prefill_was_cut_for_the_cpu(chunk: int, prefill: str) -> None:
    _, result, _ = forwarded(chunked_prefill_size=chunk, **DEEP_GEMM)
    assert result.summary == f"26 GEMMs of 4 layers, 8 requests{prefill}"


@pytest.mark.parametrize("is_baked", [True, False], ids=["baked", "not baked"])
def test_kernels_are_taken_from_the_published_cache_exactly_when_an_ancestor_baked_it(is_baked: bool) -> None:
    kernels = CachingKernels()
    seeds = {BAKED: Baked(sources=[], problems=())} if is_baked else {}
    bench = before_forward(Bench(kernels=kernels, seeds=seeds))
    bench.run(Forward())
    assert kernels.caches == ([bench.places.warm_cache] if is_baked else [])


def test_without_rules_it_is_skipped_with_the_reason() -> None:
    bench = Bench(recipe_without_rules())
    result = skipped(bench.run(Plan(), Allocate(), Adapter(), Align(), Forward()))
    assert result.reason.startswith(NOT_KNOWN)
