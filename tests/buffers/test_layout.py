from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.buffers.layout import ALIGNMENT_BYTES, ITEM_BYTES, BufferSpec, Layout, lay_out

PHASES = ("a", "b", "c")
SHAPES = st.lists(st.integers(0, 40), min_size=1, max_size=3).map(tuple)
QUICK = settings(deadline=None, database=None, max_examples=80)


@st.composite
def buffer_specs(draw: st.DrawFn) -> list[BufferSpec]:
    """Buffers of any size and type, some for the whole run, some for one phase or several."""
    return [
        BufferSpec(
            f"buffer {index}",
            draw(st.sampled_from(sorted(ITEM_BYTES))),
            draw(SHAPES),
            phases=draw(st.frozensets(st.sampled_from(PHASES))),
        )
        for index in range(draw(st.integers(0, 14)))
    ]


def of_bytes(name: str, num_bytes: int, *phases: str) -> BufferSpec:
    return BufferSpec(name, "bool", (num_bytes,), phases=frozenset(phases))


@given(specs=buffer_specs())
@QUICK
def test_buffers_that_live_together_never_overlap_with_their_guards(specs: list[BufferSpec]) -> None:
    for one, other in combinations(lay_out(specs).regions, 2):
        together = any(one.spec.is_live_in(phase) and other.spec.is_live_in(phase) for phase in (*PHASES, "none"))
        if together:
            assert one.end <= other.offset or other.end <= one.offset, f"{one} and {other}"


@given(specs=buffer_specs())
@QUICK
def test_every_buffer_begins_aligned_and_lies_inside(specs: list[BufferSpec]) -> None:
    layout = lay_out(specs)
    for region in layout.regions:
        assert region.offset % ALIGNMENT_BYTES == 0
        assert region.guard_offset == region.offset + region.spec.num_bytes
        assert region.end <= layout.arena_bytes


@given(specs=buffer_specs())
@QUICK
def test_the_arena_is_at_least_the_largest_phase(specs: list[BufferSpec]) -> None:
    layout = lay_out(specs)
    assert layout.arena_bytes >= max((layout.phase_bytes(phase) for phase in layout.phases), default=0)


@given(specs=buffer_specs())
@QUICK
def test_the_arena_is_at_most_the_sum_of_the_phases(specs: list[BufferSpec]) -> None:
    layout = lay_out(specs)
    assert layout.arena_bytes <= layout.sum_of_phase_bytes


@given(specs=buffer_specs())
@QUICK
def test_regions_keep_the_order_of_the_specs(specs: list[BufferSpec]) -> None:
    assert [region.spec for region in lay_out(specs).regions] == specs


def test_phases_that_never_meet_share_bytes() -> None:
    layout = lay_out([of_bytes("x", 10_000, "a"), of_bytes("y", 8_000, "b")])
    assert [region.offset for region in layout.regions] == [0, 0]


def test_a_buffer_of_the_whole_run_is_shared_with_no_phase() -> None:
    layout = lay_out([of_bytes("run", 100), of_bytes("x", 10_000, "a"), of_bytes("y", 8_000, "b")])
    run, x, y = layout.regions
    assert x.offset == y.offset == 0
    assert run.offset >= x.end


def test_a_buffer_of_two_phases_is_apart_from_both() -> None:
    both, x, y = lay_out([of_bytes("both", 500, "a", "b"), of_bytes("x", 500, "a"), of_bytes("y", 500, "b")]).regions
    assert both.offset == 0
    assert x.offset == y.offset >= both.end


def test_a_smaller_buffer_fills_a_gap() -> None:
    specs = [of_bytes("x", 10_000, "a"), of_bytes("y", 4_000, "b"), of_bytes("z", 4_000, "b")]
    layout = lay_out(specs)
    assert layout.arena_bytes < 11_000


def test_one_name_for_two_buffers_is_refused() -> None:
    with pytest.raises(ValueError, match="buffers named twice: x"):
        lay_out([of_bytes("x", 1), of_bytes("y", 1), of_bytes("x", 2)])


def test_no_buffers_need_no_bytes() -> None:
    layout = lay_out([])
    assert (layout.arena_bytes, layout.sum_of_phase_bytes, layout.phases) == (0, 0, [])


def test_the_sum_counts_a_buffer_of_the_whole_run_in_every_phase() -> None:
    layout: Layout = lay_out([of_bytes("run", 256), of_bytes("x", 256, "a"), of_bytes("y", 256, "b")])
    assert layout.phase_bytes("a") == layout.phase_bytes("b") == 2 * 512
    assert layout.sum_of_phase_bytes == 4 * 512
