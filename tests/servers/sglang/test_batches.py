"""The sizes of a server's batches: chunk, decode batch, the multiple of both, and what masked experts hold."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.servers.sglang import batches
from pipeline.servers.sglang.flags import MoeRunner, SglangFlags
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import target

TP8 = Parallel(tp=8)
DEEPEP8 = Parallel(tp=8, moe_a2a_backend=A2A.deepep)


@pytest.mark.parametrize(
    ("parallel", "multiple"),
    [
        (TP8, 1),
        (Parallel(tp=8, attn_dp=2), 4),
        (Parallel(tp=8, moe_dense_tp_size=1), 8),
        (DEEPEP8, 8),
        (Parallel(tp=8, attn_dp=8, moe_a2a_backend=A2A.deepep), 1),
        (Parallel(tp=6, attn_cp=2, moe_dense_tp_size=1), 12),
        (Parallel(tp=2, attn_cp=2), 4),
    ],
    ids=["tp8", "dp2", "dense tp 1", "deepep", "dp8 deepep", "cp2 and attention tp 3", "cp2"],
)
def test_a_batch_is_rounded_to_the_lcm_of_context_padding_and_attention_tp(parallel: Parallel, multiple: int) -> None:
    assert batches.batch_multiple(parallel) == multiple


@pytest.mark.parametrize(("batch", "rows"), [(1, 256), (255, 256), (256, 512), (512, 768)])
def test_without_a_backend_masked_rows_grow_in_steps_of_256(batch: int, rows: int) -> None:
    assert batches.masked_rows(batch, TP8) == rows


def test_behind_a_backend_masked_rows_are_what_every_rank_may_dispatch() -> None:
    assert batches.masked_rows(1, DEEPEP8) == 8 * 128


@pytest.mark.parametrize("runner", MoeRunner, ids=lambda runner: runner.name)
def test_only_a_flashinfer_runner_is_tuned(runner: MoeRunner) -> None:
    reason = batches.nothing_to_autotune(SglangFlags(moe_runner_backend=runner))
    assert (reason is None) is runner.name.startswith("flashinfer")
    assert reason is None or runner.name in reason


@given(tp=st.integers(1, 16), attn_cp=st.integers(1, 4), dense=st.sampled_from([None, 1]))
@settings(deadline=None, database=None)
def test_the_batch_multiple_suits_both_axes(tp: int, attn_cp: int, dense: int | None) -> None:
    parallel = Parallel(tp=tp * attn_cp, attn_cp=attn_cp, moe_dense_tp_size=dense)
    multiple = batches.batch_multiple(parallel)
    assert multiple % batches.cp_padding(parallel) == 0
    if batches.requires_mlp_sync(parallel):
        assert multiple % parallel.attn_tp == 0


@pytest.mark.parametrize(
    ("gpu", "parallel", "chunk", "batch"),
    [
        ("h200", Parallel(), 8192, 256),
        ("h200", TP8, 8192, 512),
        ("h20", TP8, 8192, 512),
        ("h100", Parallel(tp=2), 8192, 256),
        ("b200", Parallel(), 16384, 512),
        ("h200", Parallel(tp=8, attn_dp=8), 1024, 512),
    ],
)
def test_chunk_and_decode_batch_follow_the_targets_memory(gpu: str, parallel: Parallel, chunk: int, batch: int) -> None:
    assert batches.default_chunk(SglangFlags(), parallel, target(gpu)) == chunk
    assert batches.default_decode_batch(SglangFlags(), parallel, target(gpu)) == batch


def test_flags_replace_the_defaults() -> None:
    flags = SglangFlags(chunked_prefill_size=4096, cuda_graph_max_bs=24)
    assert batches.default_chunk(flags, Parallel(tp=8, attn_dp=2), target()) == 2048
    assert batches.default_decode_batch(flags, TP8, target()) == 24
