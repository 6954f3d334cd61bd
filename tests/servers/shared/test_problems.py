from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.servers.shared.problems import Kernel, MList, Problem, merge

ASCENDING = st.lists(st.integers(-1000, 70000), max_size=60, unique=True).map(sorted)
QUICK = settings(deadline=None, database=None)


def problem(m: MList, *, name: str = "a", ranks: tuple[int, ...] = (0,), n: int = 128) -> Problem:
    return Problem(
        kernel=Kernel.DENSE,
        n=n,
        k=256,
        groups=1,
        m=m,
        linears=(name,),
        layers=ranks,
        ranks=ranks,
        rules=(f"rule of {name}",),
    )


@given(values=ASCENDING)
@QUICK
def test_packing_ascending_values_loses_none(values: list[int]) -> None:
    packed = MList.of(values)
    assert list(packed) == values
    assert len(packed) == len(values)


@given(values=ASCENDING.filter(bool))
@QUICK
def test_the_ends_of_a_packed_list_are_its_least_and_greatest(values: list[int]) -> None:
    packed = MList.of(values)
    assert (packed.smallest, packed.largest) == (values[0], values[-1])


@given(values=ASCENDING)
@QUICK
def test_a_list_of_m_survives_json(values: list[int]) -> None:
    assert [m for part in MList.of(values).to_json() for m in range(*part)] == values


@given(start=st.integers(1, 100), step=st.integers(1, 64), count=st.integers(1, 500))
@QUICK
def test_an_even_progression_packs_into_one_range(start: int, step: int, count: int) -> None:
    assert len(MList.of(range(start, start + step * count, step)).ranges) == 1


@given(first=ASCENDING.filter(bool), second=ASCENDING.filter(bool))
@QUICK
def test_merging_unites_the_lists_of_m(first: list[int], second: list[int]) -> None:
    (merged,) = merge([problem(MList.of(first)), problem(MList.of(second))])
    assert list(merged.m) == sorted({*first, *second})


def test_merging_keeps_every_name_rank_and_rule_once() -> None:
    m = MList.of([1, 2])
    uses = [problem(m, name="a", ranks=(2, 3)), problem(m, name="b", ranks=(0, 1)), problem(m, name="a", ranks=(2, 3))]
    (merged,) = merge(uses)
    assert merged.linears == ("a", "b")
    assert merged.ranks == (0, 1, 2, 3)
    assert merged.rules == ("rule of a", "rule of b")


def test_merging_keeps_different_problems_apart_in_order_of_first_use() -> None:
    m = MList.of([1])
    assert [p.n for p in merge([problem(m, n=256), problem(m, n=128), problem(m, n=256)])] == [256, 128]


def test_a_problem_is_named_by_kernel_shape_and_groups() -> None:
    masked = Problem(kernel=Kernel.MASKED, n=4096, k=7168, groups=32, m=MList.of([1]), linears=(), layers=(), ranks=())
    assert masked.name == "masked 4096x7168 g32"
    assert problem(MList.of([1])).name == "dense 128x256"
