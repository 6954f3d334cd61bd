from __future__ import annotations

import pytest
import torch

from pipeline.buffers.arena import GUARD_VALUE, Arena
from pipeline.buffers.layout import BufferSpec, Content, lay_out
from pipeline.engine.errors import CapacityError, SlotError

RUN = BufferSpec("run", "int64", (4, 3), content=7)
WIDE = BufferSpec("wide", "int64", (3, 5), rows_axis=1)
X = BufferSpec("x", "bfloat16", (8, 128), content=Content.UNSET, phases=frozenset({"a"}))
Y = BufferSpec("y", "float32", (300,), content=Content.UNSET, phases=frozenset({"b"}))
BOTH = BufferSpec("both", "bool", (33,), content=Content.UNSET, phases=frozenset({"a", "b"}))


def arena_of(*specs: BufferSpec) -> tuple[Arena, torch.Tensor]:
    layout = lay_out(specs)
    memory = torch.full((layout.arena_bytes,), 0xFF, dtype=torch.uint8)
    return Arena(layout, memory), memory


def overrun(arena: Arena, memory: torch.Tensor, name: str, *, by: int = 1) -> None:
    """Write the `by`th byte past the buffer's end."""
    (region,) = [region for region in arena.layout.regions if region.spec.name == name]
    memory[region.guard_offset + by - 1] = 0


def test_every_view_has_the_shape_and_type_of_its_spec_and_lies_in_the_memory() -> None:
    arena, memory = arena_of(RUN, WIDE, X, BOTH)
    with arena.phase("a"):
        for spec in (RUN, WIDE, X, BOTH):
            view = arena[spec.name]
            assert view.shape == spec.shape
            assert view.dtype is getattr(torch, spec.dtype)
            assert view.untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
            assert view.data_ptr() % 16 == 0


def test_buffers_of_the_whole_run_are_filled_at_once() -> None:
    arena, _ = arena_of(RUN, WIDE)
    assert arena["run"].eq(7).all()
    assert arena["wide"].eq(0).all()


def test_memory_below_the_layout_is_refused() -> None:
    layout = lay_out([RUN])
    with pytest.raises(AssertionError, match="smaller"):
        Arena(layout, torch.empty(layout.arena_bytes - 1, dtype=torch.uint8))


def test_memory_of_exactly_the_layout_is_enough() -> None:
    layout = lay_out([RUN, X, Y])
    assert "run" in Arena(layout, torch.empty(layout.arena_bytes, dtype=torch.uint8))


def test_an_unknown_buffer_is_named_with_the_known_ones() -> None:
    arena, _ = arena_of(RUN)
    with pytest.raises(SlotError, match="no buffer 'nun'; it has run"):
        arena["nun"]
    assert "nun" not in arena


# Rows.


def test_rows_are_a_view_of_the_first_n() -> None:
    arena, _ = arena_of(RUN)
    arena.rows("run", 2).fill_(9)
    assert arena["run"].tolist() == [[9, 9, 9], [9, 9, 9], [7, 7, 7], [7, 7, 7]]


@pytest.mark.parametrize("n", [0, 1, 4])
def test_rows_up_to_the_capacity_are_given(n: int) -> None:
    arena, _ = arena_of(RUN)
    assert arena.rows("run", n).shape == (n, 3)


@pytest.mark.parametrize("n", [5, 500, -1])
def test_rows_past_the_capacity_are_an_error_where_slicing_would_truncate(n: int) -> None:
    arena, _ = arena_of(RUN)
    assert arena["run"][:n].shape[0] < 5, "torch gives fewer rows without a word"
    with pytest.raises(CapacityError, match=f"'run' holds 4 rows, {n} asked"):
        arena.rows("run", n)


def test_rows_follow_the_axis_of_the_spec() -> None:
    arena, _ = arena_of(WIDE)
    assert arena.rows("wide", 4).shape == (3, 4)
    with pytest.raises(CapacityError):
        arena.rows("wide", 6)


# Phases.


def test_a_buffer_is_closed_outside_its_phases() -> None:
    arena, _ = arena_of(RUN, X, Y)
    with pytest.raises(SlotError, match=r"belongs to \['a'\], the phase now is None"):
        arena["x"]
    with arena.phase("a"):
        with pytest.raises(SlotError, match=r"belongs to \['b'\], the phase now is 'a'"):
            arena["y"]
        assert arena["x"].shape == (8, 128)
    with pytest.raises(SlotError):
        arena.rows("x", 1)


def test_a_buffer_of_the_whole_run_is_open_in_and_outside_phases() -> None:
    arena, _ = arena_of(RUN, X)
    with arena.phase("a"):
        assert arena["run"].shape == (4, 3)
    assert arena["run"].shape == (4, 3)


def test_a_phase_cannot_begin_inside_another() -> None:
    arena, _ = arena_of(X, Y)
    with arena.phase("a"), pytest.raises(SlotError, match="'b' cannot begin inside phase 'a'"), arena.phase("b"):
        pass
    with arena.phase("b"):
        assert arena["y"].shape == (300,)


def overrun_and_fail(arena: Arena, memory: torch.Tensor) -> None:
    with arena.phase("a"):
        overrun(arena, memory, "x")
        raise RuntimeError


def test_a_phase_that_fails_is_left_and_checked_all_the_same() -> None:
    arena, memory = arena_of(X)
    with pytest.raises(RuntimeError):
        overrun_and_fail(arena, memory)
    assert arena.broken_guards == ["x"]
    with arena.phase("a"):
        assert arena["x"].shape == (8, 128)


# Guards.


def test_filling_every_buffer_to_its_last_byte_breaks_no_guard() -> None:
    arena, _ = arena_of(RUN, WIDE, X, Y, BOTH)
    for name, inside in (("a", ("x", "both")), ("b", ("y", "both"))):
        with arena.phase(name):
            for buffer in (*inside, "run", "wide"):
                arena[buffer].fill_(1)
    assert arena.check_guards() == []


@pytest.mark.parametrize("by", [1, 2, 256], ids=lambda by: f"byte {by}")
def test_a_write_past_a_buffer_of_the_whole_run_is_found(by: int) -> None:
    arena, memory = arena_of(RUN, WIDE, X)
    overrun(arena, memory, "run", by=by)
    assert arena.check_guards() == ["run"]


@pytest.mark.parametrize("by", [1, 256], ids=lambda by: f"byte {by}")
def test_a_write_past_a_buffer_of_a_phase_is_found_when_the_phase_ends(by: int) -> None:
    arena, memory = arena_of(RUN, X, Y)
    with arena.phase("a"):
        overrun(arena, memory, "x", by=by)
    assert arena.broken_guards == ["x"]
    assert arena.check_guards() == ["x"]


def test_a_write_past_a_buffer_of_the_whole_run_is_found_when_a_phase_ends() -> None:
    arena, memory = arena_of(RUN, X)
    with arena.phase("a"):
        overrun(arena, memory, "run")
    assert arena.broken_guards == ["run"]


def test_an_overrun_seen_once_is_never_forgotten() -> None:
    arena, memory = arena_of(RUN, X)
    with arena.phase("a"):
        overrun(arena, memory, "x")
    memory.fill_(GUARD_VALUE)
    with arena.phase("a"):
        pass
    assert arena.check_guards() == ["x"]


def test_what_one_phase_writes_over_the_guards_of_another_is_no_overrun() -> None:
    small = BufferSpec("small", "bool", (16,), content=Content.UNSET, phases=frozenset({"a"}))
    arena, _ = arena_of(small, Y)
    with arena.phase("a"):
        pass
    with arena.phase("b"):
        arena["y"].fill_(3)
    with arena.phase("a"):
        arena["small"].fill_(True)
    assert arena.check_guards() == []


# Refill, addresses.


def test_refilling_restores_what_the_spec_names() -> None:
    arena, _ = arena_of(RUN, WIDE)
    arena["run"].zero_()
    arena["wide"].fill_(5)
    arena.refill("run")
    assert arena["run"].eq(7).all()
    assert arena["wide"].eq(5).all()


def test_refilling_a_buffer_whose_content_is_unset_leaves_it_alone() -> None:
    arena, _ = arena_of(X)
    with arena.phase("a"):
        arena["x"].fill_(3)
        arena.refill("x")
        assert arena["x"].eq(3).all()


def test_refilling_a_buffer_outside_its_phase_is_refused() -> None:
    filled = BufferSpec("filled", "float32", (300,), content=1, phases=frozenset({"a"}))
    arena, _ = arena_of(filled, Y)
    with arena.phase("b"):
        arena["y"].fill_(3)
        with pytest.raises(SlotError):
            arena.refill("filled")
        assert arena["y"].eq(3).all(), "the bytes belong to phase b now"


def test_addresses_stay_where_they_were() -> None:
    arena, memory = arena_of(RUN, X, Y)
    before = arena.addresses()
    with arena.phase("a"):
        arena["x"].fill_(1)
    assert arena.addresses() == before
    assert set(before) == {"run", "x", "y"}
    assert all(memory.data_ptr() <= address < memory.data_ptr() + memory.numel() for address in before.values())
