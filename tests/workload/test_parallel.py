from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.workload.parallel import A2A, Parallel, split_layers_last

SPANNING = [backend for backend in A2A if backend is not A2A.none]


@pytest.mark.parametrize(
    ("num_layers", "pp", "counts"),
    [
        (61, 4, [15, 15, 15, 16]),
        (61, 2, [30, 31]),
        (61, 8, [7, 7, 7, 8, 8, 8, 8, 8]),
        (94, 4, [23, 23, 24, 24]),
        (61, 1, [61]),
    ],
)
def test_the_last_places_of_the_pipeline_hold_what_does_not_divide(num_layers: int, pp: int, counts: list[int]) -> None:
    assert split_layers_last(num_layers, pp) == counts


@given(num_layers=st.integers(1, 200), pp=st.integers(1, 64))
@settings(deadline=None, database=None)
def test_a_split_is_complete_even_and_never_falls(num_layers: int, pp: int) -> None:
    counts = split_layers_last(num_layers, pp)
    assert len(counts) == pp
    assert sum(counts) == num_layers
    assert max(counts) - min(counts) <= 1
    assert counts == sorted(counts)


@pytest.mark.parametrize("backend", SPANNING, ids=lambda backend: backend.name)
def test_an_all_to_all_backend_spreads_experts_over_the_whole_group(backend: A2A) -> None:
    parallel = Parallel(tp=8, ep=2, moe_a2a_backend=backend)
    assert (parallel.effective_ep, parallel.moe_tp) == (8, 1)


def test_without_a_backend_the_expert_size_is_the_flag() -> None:
    parallel = Parallel(tp=8, ep=2, moe_dp=2)
    assert (parallel.effective_ep, parallel.moe_tp) == (2, 2)


@pytest.mark.parametrize(("flag", "width"), [(None, 8), (1, 1)])
def test_a_dense_layer_is_as_wide_as_the_group_or_whole(flag: int | None, width: int) -> None:
    assert Parallel(tp=8, moe_dense_tp_size=flag).dense_tp == width


def test_context_parallel_narrows_attention_and_nothing_else() -> None:
    parallel = Parallel(tp=8, attn_cp=2)
    assert (parallel.attn_tp, parallel.moe_tp, parallel.dense_tp) == (4, 8, 8)


def test_places_of_the_pipeline_are_the_outer_dimension_of_ranks() -> None:
    parallel = Parallel(tp=2, pp=3)
    assert [parallel.ranks_at(place) for place in range(3)] == [(0, 1), (2, 3), (4, 5)]
    assert parallel.num_ranks == 6
