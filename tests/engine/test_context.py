from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.engine.context import SEEDED, Context, Ended, Slot, View
from pipeline.engine.errors import SlotError, StageError

SIZE: Slot[int] = Slot("size")
NAME: Slot[str] = Slot("name")
QUIET = Ended(allocates_nothing=True, allocated_bytes=0)


def view_of(
    context: Context,
    stage: str,
    *,
    reads: Sequence[Slot[Any]] = (),
    writes: Sequence[Slot[Any]] = (),
    after: Sequence[str] = (),
) -> View:
    """What the stage sees when it runs after these stages."""
    return context.scoped(stage, reads=reads, writes=writes, ancestors=dict.fromkeys(after, QUIET))


def test_a_stage_reads_what_an_earlier_stage_wrote():
    context = Context()
    view_of(context, "first", writes=(SIZE,))[SIZE] = 7
    view = view_of(context, "second", reads=(SIZE,), after=("first",))
    assert view[SIZE] == 7
    assert view.get(SIZE) == 7


def test_a_seeded_value_is_read_like_any_other():
    context = Context()
    context.seed(NAME, "tiny")
    view = view_of(context, "plan", reads=(NAME,))
    assert view[NAME] == "tiny"
    assert view.get(NAME) == "tiny"


def test_a_slot_is_written_once():
    view = view_of(Context(), "plan", writes=(SIZE,))
    view[SIZE] = 1
    with pytest.raises(SlotError, match=r"slot 'size' is written once, and plan filled it already"):
        view[SIZE] = 2


def test_a_seeded_slot_is_not_written_again():
    context = Context()
    context.seed(SIZE, 1)
    with pytest.raises(SlotError, match="written once, and what the run started from filled it already"):
        view_of(context, "plan", writes=(SIZE,))[SIZE] = 2
    assert context.read(SIZE) == 1


def test_a_value_of_none_fills_its_slot():
    context = Context()
    slot: Slot[None] = Slot("nothing")
    context.seed(slot, None)
    assert context.writer(slot) == SEEDED
    with pytest.raises(SlotError, match="written once"):
        context.seed(slot, None)


def test_an_undeclared_read_names_the_stage_and_the_slot_and_what_to_do():
    context = Context()
    context.seed(SIZE, 1)
    view = view_of(context, "align", reads=(NAME,))
    with pytest.raises(SlotError, match=r"stage 'align' reads 'size' without declaring it; add it to `reads`"):
        view[SIZE]
    with pytest.raises(SlotError, match=r"stage 'align' reads 'size' without declaring it; add it to `may_read`"):
        view.get(SIZE)


def test_an_undeclared_write_names_the_stage_and_the_slot_and_what_to_do():
    context = Context()
    view = view_of(context, "align", reads=(SIZE,), writes=(NAME,))
    with pytest.raises(SlotError, match=r"stage 'align' writes 'size' without declaring it; add it to `writes`"):
        view[SIZE] = 1
    assert context.writer(SIZE) is None


def test_a_stage_may_not_read_what_it_only_writes():
    view = view_of(Context(), "plan", writes=(SIZE,))
    view[SIZE] = 1
    with pytest.raises(SlotError, match="reads 'size' without declaring"):
        view[SIZE]


def test_a_read_of_an_empty_slot_says_that_its_writer_has_not_run():
    view = view_of(Context(), "align", reads=(SIZE,))
    with pytest.raises(SlotError, match=r"slot 'size' is empty; the stage that writes it has not run"):
        view[SIZE]


def test_a_slot_that_nobody_wrote_is_none_for_a_stage_that_can_do_without():
    assert view_of(Context(), "align", reads=(SIZE,), after=("plan",)).get(SIZE) is None


@pytest.mark.parametrize("after", [(), ("plan",)], ids=["no ancestor", "another ancestor"])
def test_what_a_stage_beside_it_wrote_is_not_there_for_a_stage_whenever_it_was_written(after: tuple[str, ...]):
    context = Context()
    view = view_of(context, "align", reads=(SIZE,), after=after)
    before = view.get(SIZE)
    view_of(context, "sweep", writes=(SIZE,))[SIZE] = 7
    assert (before, view.get(SIZE)) == (None, None)
    assert view_of(context, "align", reads=(SIZE,), after=after).get(SIZE) is None
    assert view_of(context, "align", reads=(SIZE,), after=(*after, "sweep")).get(SIZE) == 7


def test_reading_what_a_stage_beside_it_wrote_names_that_stage_and_the_need_to_add():
    context = Context()
    view_of(context, "sweep", writes=(SIZE,))[SIZE] = 7
    with pytest.raises(SlotError) as refused:
        view_of(context, "align", reads=(SIZE,), after=("plan",))[SIZE]
    assert str(refused.value) == (
        "stage 'align' reads 'size', which 'sweep' wrote; 'sweep' is none of its ancestors: add it to the needs of "
        "'align'"
    )


def test_a_view_has_what_each_ancestor_allocated_and_promised():
    ancestors = {"allocate": Ended(allocates_nothing=False, allocated_bytes=4096), "align": QUIET}
    view = Context().scoped("verify", reads=(), writes=(), ancestors=ancestors)
    assert view.ancestors == ancestors
    assert (view.ancestors["allocate"].allocated_bytes, view.ancestors["allocate"].allocates_nothing) == (4096, False)


def test_a_slot_error_fails_the_stage_and_not_the_program():
    assert issubclass(SlotError, StageError)


def test_of_many_threads_that_write_one_slot_exactly_one_succeeds():
    context = Context()
    refused = list[SlotError]()
    together = threading.Barrier(8, timeout=10)

    def write(value: int) -> None:
        together.wait()
        try:
            context.write(SIZE, value, by=f"stage {value}")
        except SlotError as error:
            refused.append(error)

    threads = [threading.Thread(target=write, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert len(refused) == 7
    assert context.read(SIZE) in range(8)
    assert context.writer(SIZE) == f"stage {context.read(SIZE)}"
