from __future__ import annotations

import threading

import pytest

from pipeline.engine.context import Context, Slot
from pipeline.engine.errors import SlotError, StageError

SIZE: Slot[int] = Slot("size")
NAME: Slot[str] = Slot("name")


def test_a_stage_reads_what_an_earlier_stage_wrote():
    context = Context()
    context.scoped("first", reads=(), writes=(SIZE,))[SIZE] = 7
    assert context.scoped("second", reads=(SIZE,), writes=())[SIZE] == 7


def test_a_seeded_value_is_read_like_any_other():
    context = Context()
    context.seed(NAME, "tiny")
    assert context.scoped("plan", reads=(NAME,), writes=())[NAME] == "tiny"


def test_a_slot_is_written_once():
    view = Context().scoped("plan", reads=(), writes=(SIZE,))
    view[SIZE] = 1
    with pytest.raises(SlotError, match=r"slot 'size' is written once"):
        view[SIZE] = 2


def test_a_seeded_slot_is_not_written_again():
    context = Context()
    context.seed(SIZE, 1)
    with pytest.raises(SlotError, match="filled already"):
        context.scoped("plan", reads=(), writes=(SIZE,))[SIZE] = 2
    assert context.read(SIZE) == 1


def test_a_value_of_none_fills_its_slot():
    context = Context()
    slot: Slot[None] = Slot("nothing")
    context.seed(slot, None)
    assert context.holds(slot)
    with pytest.raises(SlotError, match="written once"):
        context.seed(slot, None)


def test_an_undeclared_read_names_the_stage_and_the_slot_and_what_to_do():
    context = Context()
    context.seed(SIZE, 1)
    view = context.scoped("align", reads=(NAME,), writes=())
    with pytest.raises(SlotError, match=r"stage 'align' reads 'size' without declaring it; add it to `reads`"):
        view[SIZE]


def test_an_undeclared_write_names_the_stage_and_the_slot_and_what_to_do():
    context = Context()
    view = context.scoped("align", reads=(SIZE,), writes=(NAME,))
    with pytest.raises(SlotError, match=r"stage 'align' writes 'size' without declaring it; add it to `writes`"):
        view[SIZE] = 1
    assert not context.holds(SIZE)


def test_a_stage_may_not_read_what_it_only_writes():
    view = Context().scoped("plan", reads=(), writes=(SIZE,))
    view[SIZE] = 1
    with pytest.raises(SlotError, match="reads 'size' without declaring"):
        view[SIZE]


def test_a_read_of_an_empty_slot_says_that_its_writer_has_not_run():
    view = Context().scoped("align", reads=(SIZE,), writes=())
    with pytest.raises(SlotError, match=r"slot 'size' is empty; the stage that writes it has not run"):
        view[SIZE]


def test_a_slot_error_fails_the_stage_and_not_the_program():
    assert issubclass(SlotError, StageError)


def test_of_many_threads_that_write_one_slot_exactly_one_succeeds():
    context = Context()
    refused = list[SlotError]()
    together = threading.Barrier(8, timeout=10)

    def write(value: int) -> None:
        together.wait()
        try:
            context.write(SIZE, value)
        except SlotError as error:
            refused.append(error)

    threads = [threading.Thread(target=write, args=(value,)) for value in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=10)
    assert len(refused) == 7
    assert context.read(SIZE) in range(8)
