"""The lists of M of SGLang 0.5.23."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.servers.sglang import m_lists
from pipeline.servers.sglang.flags import SglangFlags
from pipeline.servers.shared.contiguous_layout import contiguous_rows
from pipeline.servers.shared.problems import Kernel, MList
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import DEEP_GEMM, deepseek, workload_of

TP8 = Parallel(tp=8)
QUICK = settings(deadline=None, database=None, max_examples=40)


def m_list(chunk: int, *, fast: bool = False) -> MList:
    return m_lists.m_list(SglangFlags(fast_warmup=fast), chunk)


@pytest.mark.parametrize(
    ("chunk", "count"),
    [(1024, 16384), (8192, 16384), (8193, 16386), (16384, 32768), (32768, 65536), (-1, 65536), (100000, 131072)],
)
def test_the_default_list_is_every_m_up_to_the_servers_largest(chunk: int, count: int) -> None:
    values = m_list(chunk)
    assert len(values) == count
    assert (values.smallest, values.largest) == (1, count)


@pytest.mark.parametrize(
    ("chunk", "count", "largest"),
    [(4096, 2048, 4096), (8192, 2560, 8192), (16384, 3072, 16384), (32768, 3584, 32768), (65536, 3584, 32768)],
)
def test_the_fast_list_thins_out_by_octaves(chunk: int, count: int, largest: int) -> None:
    values = m_list(chunk, fast=True)
    assert len(values) == count
    assert (values.smallest, values.largest) == (1, largest)
    assert list(values)[:1024] == list(range(1, 1025))


def test_the_fast_list_without_chunks_ends_at_the_default_largest() -> None:
    assert m_list(-1, fast=True).largest == 16384


@pytest.mark.parametrize("chunk", [1, 500, 1024, 1025, 3000])
def test_the_fast_list_ends_at_the_chunk_itself(chunk: int) -> None:
    values = list(m_list(chunk, fast=True))
    assert values[-1] == chunk
    assert values == sorted(set(values))


@pytest.mark.parametrize(("fast", "count"), [(False, 128), (True, 64)])
def test_the_contiguous_list_holds_the_aligned_values_of_the_servers_list(fast: bool, count: int) -> None:
    every_m = m_list(8192, fast=fast)
    values = list(m_lists.contiguous_m_list(every_m, chunk=8192, top_k=8, groups=257))
    assert [m for m in values if m <= every_m.largest] == [m for m in every_m if m % 128 == 0]
    assert len([m for m in values if m <= every_m.largest]) == count


def test_the_contiguous_list_reaches_what_the_routes_of_a_chunk_reach() -> None:
    # 1024 tokens with 8 routes each over 32 groups: (32 + (8192 - 32) // 128) blocks of 128 rows.
    assert contiguous_rows(8192, 32) == 128 * 95
    assert m_lists.contiguous_m_list(m_list(1024, fast=True), chunk=1024, top_k=8, groups=32).largest == 128 * 95


def test_the_contiguous_list_is_not_extended_past_the_default_largest() -> None:
    assert m_lists.contiguous_m_list(m_list(8192, fast=True), chunk=8192, top_k=8, groups=257).largest == 16384


@given(chunk=st.integers(-1, 40000), fast=st.booleans(), top_k=st.integers(1, 16), groups=st.integers(1, 400))
@QUICK
def test_contiguous_rows_are_ascending_multiples_of_the_alignment(
    chunk: int, fast: bool, top_k: int, groups: int
) -> None:
    values = list(m_lists.contiguous_m_list(m_list(chunk, fast=fast), chunk=chunk, top_k=top_k, groups=groups))
    assert values
    assert all(m % 128 == 0 for m in values)
    assert values == sorted(set(values))


def test_each_problem_has_the_list_of_its_kernel() -> None:
    workload = workload_of(deepseek(), TP8, **DEEP_GEMM)
    counts = {problem.kernel: len(problem.m) for problem in workload.problems}
    assert counts == {Kernel.DENSE: 16384, Kernel.MASKED: 16384, Kernel.CONTIGUOUS: 128}


def test_attention_dp_divides_the_chunk_before_the_list_is_made() -> None:
    parallel = Parallel(tp=8, attn_dp=8, moe_a2a_backend=A2A.deepep)
    workload = workload_of(deepseek(), parallel, chunked_prefill_size=131072)
    assert workload.rules.chunk == 16384
    assert {len(problem.m) for problem in workload.problems if problem.kernel is Kernel.DENSE} == {32768}


def test_a_fused_shared_expert_is_one_more_route_of_every_token() -> None:
    # 8 tokens with 8 routed experts and the shared one: 72 routes, each in a block of its own at worst.
    workload = workload_of(deepseek(), TP8, chunked_prefill_size=8, fast_warmup=True, **DEEP_GEMM)
    largest = {problem.m.largest for problem in workload.problems if problem.kernel is Kernel.CONTIGUOUS}
    assert largest == {72 * 128}
