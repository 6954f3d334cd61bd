from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from pipeline.engine.context import Ended, Slot, View
from pipeline.engine.events import Kind
from pipeline.engine.figures import Figures
from pipeline.engine.report import exit_code
from pipeline.engine.runner import Status
from pipeline.engine.stage import Resource, Result, Skipped
from tests.engine.bench import TIMEOUT_S, Bench, Do, await_or_fail, fine, stage, statuses

WORK: Slot[int] = Slot("work")


@dataclass(kw_only=True)
class Kernels(Figures):
    """What a stage of these tests measures."""

    section: ClassVar[str] = "kernels"
    compiled: int | None = None


@pytest.fixture
def bench() -> Bench:
    return Bench()


def write(ctx: View) -> Result:
    ctx[WORK] = 42
    return Result("")


def test_every_stage_starts_after_its_needs_have_finished(bench: Bench):
    stages = {name: stage(fine) for name in ("export", "plan", "sweep", "tune")}
    needs = {"export": ["sweep", "tune"], "plan": [], "sweep": ["plan"], "tune": ["plan"]}
    outcomes = bench.run(stages, needs)
    assert set(statuses(outcomes).values()) == {Status.OK}
    order = [(event.kind, event.stage) for event in bench.seen]
    for name, wanted in needs.items():
        for need in wanted:
            assert order.index((Kind.FINISHED, need)) < order.index((Kind.STARTED, name))


def test_outcomes_come_back_in_the_order_of_the_graph(bench: Bench):
    stages = {name: stage(fine) for name in ("c", "b", "a")}
    outcomes = bench.run(stages, {"c": ["b"], "b": ["a"], "a": []})
    assert [outcome.name for outcome in outcomes] == ["a", "b", "c"]


def test_a_value_travels_from_one_stage_to_the_next(bench: Bench):
    stages = {
        "write": stage(write, writes=(WORK,)),
        "read": stage(lambda ctx: Result(str(ctx[WORK])), reads=(WORK,)),
    }
    outcomes = bench.run(stages, {"write": [], "read": ["write"]})
    assert outcomes[1].reason == "42"


def test_an_outcome_carries_seconds_bytes_summary_and_figures(bench: Bench):
    def allocate(ctx: View) -> Result:
        bench.counted.allocated_bytes = 512
        return Result("two", (Kernels(compiled=2),))

    (outcome,) = bench.run({"plan": stage(allocate)}, {"plan": []})
    assert outcome.seconds is not None
    assert outcome.seconds >= 0
    assert (outcome.allocated_bytes, outcome.reason, outcome.figures) == (512, "two", (Kernels(compiled=2),))
    assert bench.finished()["plan"].data["allocated_bytes"] == 512


def test_device_stages_never_overlap_while_a_cores_stage_runs_beside(bench: Bench):
    device_ran = threading.Event()
    cores_ran = threading.Event()
    lock = threading.Lock()
    holding = 0
    most = list[int]()

    def hold_device(ctx: View) -> Result:
        nonlocal holding
        with lock:
            holding += 1
            most.append(holding)
        device_ran.set()
        await_or_fail(cores_ran)
        # Long enough for a second device stage to come in, if the runner let it.
        time.sleep(0.1)
        with lock:
            holding -= 1
        return Result("")

    def use_cores(ctx: View) -> Result:
        cores_ran.set()
        await_or_fail(device_ran)
        return Result("")

    stages = {name: stage(hold_device, resource=Resource.DEVICE) for name in ("tune", "verify", "measure")}
    stages["sweep"] = stage(use_cores)
    outcomes = bench.run(stages, {name: [] for name in stages})
    assert set(statuses(outcomes).values()) == {Status.OK}
    assert most == [1, 1, 1]


def test_stages_that_use_only_cores_run_side_by_side(bench: Bench):
    together = threading.Barrier(3, timeout=TIMEOUT_S)

    def meet(ctx: View) -> Result:
        together.wait()
        return Result("")

    outcomes = bench.run({name: stage(meet) for name in "abc"}, {name: [] for name in "abc"})
    assert set(statuses(outcomes).values()) == {Status.OK}


def test_a_skipped_stage_keeps_its_reason_and_figures_and_blocks_nothing(bench: Bench):
    skip = Skipped("the server tunes nothing", (Kernels(compiled=0),))
    outcomes = bench.run({"tune": stage(lambda ctx: skip), "verify": stage(fine)}, {"tune": [], "verify": ["tune"]})
    assert statuses(outcomes) == {"tune": Status.SKIPPED, "verify": Status.OK}
    assert outcomes[0].reason == "the server tunes nothing"
    assert outcomes[0].figures == (Kernels(compiled=0),)
    assert exit_code(outcomes) == 0


def test_a_stage_outside_its_contract_fails_and_the_run_reports(bench: Bench):
    (outcome,) = bench.run({"plan": stage(write)}, {"plan": []})
    assert outcome.status is Status.FAILED
    assert outcome.reason is not None
    assert "writes 'work' without declaring it" in outcome.reason


def reading(values: list[int | None], before: threading.Event | None = None) -> Do:
    """Notes what the slot holds for it, once the other stage has ended."""

    def read(ctx: View) -> Result:
        if before is not None:
            await_or_fail(before)
        values.append(ctx.get(WORK))
        return Result("")

    return read


@pytest.mark.parametrize("resource", Resource)
@pytest.mark.parametrize("needs", [[], ["write"]], ids=["beside it", "after it"])
def test_a_stage_sees_what_it_may_read_only_from_its_ancestors(bench: Bench, resource: Resource, needs: list[str]):
    values: list[int | None] = []
    stages = {
        "write": stage(write, resource=resource, writes=(WORK,)),
        "read": stage(reading(values, bench.when_finished("write")), resource=resource, may_read=(WORK,)),
    }
    outcomes = bench.run(stages, {"write": [], "read": needs})
    assert set(statuses(outcomes).values()) == {Status.OK}
    assert values == ([42] if needs else [None])


def test_a_stage_does_not_see_what_a_stage_beside_it_writes_while_it_runs(bench: Bench):
    values: list[int | None] = []
    looked = threading.Event()
    written = bench.when_finished("write")

    def look_twice(ctx: View) -> Result | Skipped:
        values.append(ctx.get(WORK))
        looked.set()
        return reading(values, written)(ctx)

    def write_later(ctx: View) -> Result:
        await_or_fail(looked)
        return write(ctx)

    stages = {"read": stage(look_twice, may_read=(WORK,)), "write": stage(write_later, writes=(WORK,))}
    outcomes = bench.run(stages, {"read": [], "write": []})
    assert set(statuses(outcomes).values()) == {Status.OK}
    assert values == [None, None]


def test_a_stage_that_insists_on_what_no_ancestor_wrote_fails_with_the_need_to_add(bench: Bench):
    written = bench.when_finished("write")

    def insist(ctx: View) -> Result:
        await_or_fail(written)
        return Result(str(ctx[WORK]))

    stages = {"write": stage(write, writes=(WORK,)), "read": stage(insist, may_read=(WORK,))}
    outcomes = bench.run(stages, {"write": [], "read": []})
    assert statuses(outcomes) == {"write": Status.OK, "read": Status.FAILED}
    assert outcomes[1].reason == (
        "stage 'read' reads 'work', which 'write' wrote; 'write' is none of its ancestors: add it to the needs of "
        "'read'"
    )
    assert exit_code(outcomes) == 4


def test_a_stage_is_told_what_its_ancestors_allocated_and_promised_and_nothing_of_the_others(bench: Bench):
    views: list[Mapping[str, Ended]] = []

    def allocating(num_bytes: int | None) -> Do:
        def allocate(ctx: View) -> Result | Skipped:
            bench.counted.allocated_bytes = num_bytes
            return Result("") if num_bytes else Skipped("nothing to do")

        return allocate

    def look(ctx: View) -> Result:
        await_or_fail(beside)
        views.append(ctx.ancestors)
        return Result("")

    beside = bench.when_finished("beside")
    stages = {
        "allocate": stage(allocating(4096)),
        "forward": stage(allocating(16), allocates_nothing=True),
        "autotune": stage(allocating(0), allocates_nothing=True),
        "unmeasured": stage(allocating(None)),
        "beside": stage(allocating(8), allocates_nothing=True),
        "verify": stage(look, allocates_nothing=True),
        "export": stage(allocating(1)),
    }
    needs = {"allocate": [], "forward": ["allocate"], "autotune": ["forward"], "unmeasured": [], "beside": ["allocate"]}
    bench.run(stages, {**needs, "verify": ["autotune", "unmeasured"], "export": ["verify"]})
    assert views == [
        {
            "allocate": Ended(allocates_nothing=False, allocated_bytes=4096),
            "forward": Ended(allocates_nothing=True, allocated_bytes=16),
            "autotune": Ended(allocates_nothing=True, allocated_bytes=0),
            "unmeasured": Ended(allocates_nothing=False, allocated_bytes=None),
        }
    ]
