"""What verify finds wrong with buffers, allocations and tactics, and how it says what the GPU confirmed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipeline.engine.children import Children
from pipeline.engine.context import Ended
from pipeline.figures import VerifyFigures
from pipeline.slots import BATCH, FORWARD, RESERVED, TACTICS
from pipeline.tuning.tactics import Tuned, Tuner
from stages.verify import allocated_after_arena, allocation_faults, buffer_faults, hardware_summary, tactic_faults
from tests.stages.test_verify import bench_of


def test_only_promises_count_and_what_is_not_measured_is_no_fault() -> None:
    ended = {"allocate": Ended(False, 1 << 20), "align": Ended(True, None), "adapter": Ended(True, 8)}
    allocated = allocated_after_arena(ended)
    assert allocated == {"align": 0, "adapter": 8}
    assert allocation_faults(allocated) == ["stage adapter allocated 8 bytes after `allocate`"]


def test_a_buffer_that_was_overrun_or_moved_is_named(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    reserved = bench.context.read(RESERVED)
    # The guard follows the buffer's last byte.
    buffer = reserved.arena["decode.seq_lens"]
    overrun = torch.as_strided(buffer, (buffer.numel() + 1,), (1,), buffer.storage_offset())
    overrun[-1] = 7
    moved = replace(reserved, addresses=reserved.addresses | {"decode.input_ids": 1})
    figures = VerifyFigures()
    faults = buffer_faults(moved, bench.context.read(FORWARD), bench.context.read(BATCH).multiple, figures)
    assert faults == [
        "buffer decode.seq_lens: something wrote past its end",
        "buffer decode.input_ids: moved during the run",
    ]
    assert (figures.guards_ok, figures.addresses_ok, figures.seq_lens_ok, figures.batch_ok) == (
        False,
        False,
        True,
        True,
    )


def test_a_dummy_run_without_sequences_or_of_an_odd_batch_is_a_fault(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    forward = replace(bench.context.read(FORWARD), min_seq_len=0, batch=7)
    figures = VerifyFigures()
    assert buffer_faults(bench.context.read(RESERVED), forward, 4, figures) == [
        "a dummy run saw a sequence length of 0",
        "a dummy run had 7 requests, not a multiple of 4",
    ]
    assert (figures.guards_ok, figures.seq_lens_ok, figures.batch_ok) == (True, False, False)


def test_tactics_that_a_fresh_process_does_not_find_are_a_fault(tmp_path: Path) -> None:
    tuner = Tuner(tmp_path / "tactics.json", Children(), [1, 8], 1.0)
    figures = VerifyFigures()
    (fault,) = tactic_faults([Tuned(tuner, "fp8_gemm", ((1, 512, 256), (8, 512, 256)))], figures)
    assert "2 of 2 shapes have no tactic in tactics.json" in fault
    assert figures.tactics_replayed == 2


def test_nothing_is_replayed_where_nothing_was_tuned(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    assert bench.context.read(TACTICS) == ()
    figures = VerifyFigures()
    assert tactic_faults((), figures) == []
    assert figures.tactics_replayed is None


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        (VerifyFigures(), "numerics not checked: nothing to run"),
        (VerifyFigures(hardware_skipped="no GPU"), "numerics not checked: no GPU"),
        (VerifyFigures(numerics_checked=3, without_reference=0), "3 kernels executed"),
        (
            VerifyFigures(numerics_checked=3, without_reference=2, max_relative_error=0.00123),
            "3 kernels executed, relative error at most 1.2e-03, 2 loaded only (no reference)",
        ),
    ],
    ids=["nothing baked", "no GPU", "executed", "with error and others"],
)
def test_the_summary_says_what_the_gpu_confirmed(figures: VerifyFigures, line: str) -> None:
    assert hardware_summary(figures) == line
