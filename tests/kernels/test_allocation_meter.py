from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pipeline.engine.errors import HostError
from pipeline.kernels.reference import ReferenceKernels, kernel

TIMEOUT_S = 20


class WaitingKernels(ReferenceKernels):
    """Reference kernels, and one that allocates while another thread does."""

    @kernel
    def allocate_between(self, barrier: threading.Barrier) -> None:
        """Wait, make a temporary, wait."""
        barrier.wait(TIMEOUT_S)
        torch.empty(1 << 16, dtype=torch.uint8)
        barrier.wait(TIMEOUT_S)


def counted(work: Callable[[ReferenceKernels], object]) -> int | None:
    kernels = ReferenceKernels()
    with kernels.meter() as meter:
        work(kernels)
    return meter.allocated_bytes


def test_a_tensor_that_a_stage_makes_is_counted() -> None:
    assert counted(lambda _: torch.empty(1000, dtype=torch.uint8)) == 1000
    assert counted(lambda _: torch.zeros(10, 10)) == 400


def test_every_tensor_is_counted_once() -> None:
    assert counted(lambda _: [torch.empty(100, dtype=torch.uint8) for _ in range(3)]) == 300


def test_an_operator_that_makes_a_new_tensor_is_counted() -> None:
    x = torch.ones(64)
    assert counted(lambda _: x + 1) == 256
    assert counted(lambda _: x.clone()) == 256


def test_views_and_work_in_place_are_free() -> None:
    x = torch.ones(4, 8)

    def work(_: ReferenceKernels) -> None:
        x[1:3].view(-1).add_(1)
        x.narrow(0, 1, 2).fill_(0)
        x.expand(2, 4, 8).unsqueeze(0)
        x.tolist()

    assert counted(work) == 0


def test_an_arena_is_counted_in_full() -> None:
    assert counted(lambda kernels: kernels.allocate(12345)) == 12345


def test_the_temporaries_of_a_kernel_are_its_own() -> None:
    x = torch.randn(16, 128)
    weight = torch.ones(128)
    out = torch.empty(16, 128)
    assert counted(lambda kernels: kernels.rms_norm(x, weight, out)) == 0


def test_what_a_stage_makes_beside_a_kernel_is_still_counted() -> None:
    x = torch.randn(16, 128)
    weight = torch.ones(128)
    assert counted(lambda kernels: kernels.rms_norm(x, weight, torch.empty(16, 128))) == 16 * 128 * 4


def test_a_failed_kernel_does_not_hide_what_comes_after() -> None:
    x = torch.randn(2, 8)
    too_short = torch.ones(7)
    out = torch.empty(2, 8)

    def work(kernels: ReferenceKernels) -> None:
        with pytest.raises(RuntimeError, match="size of tensor"):
            kernels.rms_norm(x, too_short, out)
        torch.empty(50, dtype=torch.uint8)

    assert counted(work) == 50


def test_nothing_is_counted_outside_a_meter() -> None:
    kernels = ReferenceKernels()
    with kernels.meter() as meter:
        pass
    torch.empty(100)
    kernels.rms_norm(torch.randn(2, 8), torch.ones(8), torch.empty(2, 8))
    assert meter.allocated_bytes == 0


def test_each_meter_begins_at_zero() -> None:
    kernels = ReferenceKernels()
    counts: list[int | None] = []
    for size in (10, 20):
        with kernels.meter() as meter:
            torch.empty(size, dtype=torch.uint8)
        counts.append(meter.allocated_bytes)
    assert counts == [10, 20]


def test_threads_with_their_own_meters_do_not_disturb_each_other() -> None:
    kernels = WaitingKernels()
    barrier = threading.Barrier(2)

    def allocate_beside_a_kernel(num_bytes: int) -> None:
        barrier.wait(TIMEOUT_S)
        torch.empty(num_bytes, dtype=torch.uint8)
        barrier.wait(TIMEOUT_S)

    def first() -> int | None:
        with kernels.meter() as meter:
            barrier.wait(TIMEOUT_S)
            kernels.allocate_between(barrier)
            allocate_beside_a_kernel(7)
        return meter.allocated_bytes

    def second() -> int | None:
        with kernels.meter() as meter:
            barrier.wait(TIMEOUT_S)
            allocate_beside_a_kernel(100)
            kernels.allocate_between(barrier)
        return meter.allocated_bytes

    with ThreadPoolExecutor(2) as pool:
        counts = [pool.submit(work) for work in (first, second)]
        assert [count.result(TIMEOUT_S) for count in counts] == [7, 100]


def test_more_memory_than_there_is_says_what_to_lower() -> None:
    with pytest.raises(HostError, match=r"server\.cuda_graph_max_bs"):
        ReferenceKernels().allocate(1 << 60)


def test_free_memory_is_what_the_machine_has() -> None:
    assert 0 < ReferenceKernels().free_bytes() < 1 << 50
