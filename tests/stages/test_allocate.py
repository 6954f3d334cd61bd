from __future__ import annotations

import pytest

from pipeline.engine.errors import HostError
from pipeline.figures import ArenaFigures, MemoryFigures
from pipeline.plan.make import make_plan
from pipeline.slots import BUFFER_PLAN, RESERVED
from stages.allocate import Allocate, require_fit
from stages.plan import Plan
from tests.stages.runs import NOT_KNOWN, Bench, RecordingKernels, figures_of, recipe_of, recipe_without_rules, skipped


def arena_bytes() -> int:
    return make_plan(recipe_of())[1].layout.arena_bytes


def test_one_allocation_of_exactly_the_layout_is_made() -> None:
    bench = Bench()
    bench.run(Plan(), Allocate())
    assert bench.kernels.allocations == [arena_bytes()]
    assert bench.allocated["allocate"] == arena_bytes()


def test_the_arena_holds_every_planned_buffer_at_a_known_address() -> None:
    bench = Bench()
    bench.run(Plan(), Allocate())
    reserved = bench.context.read(RESERVED)
    plan = bench.context.read(BUFFER_PLAN)
    assert set(reserved.addresses) == {region.spec.name for region in plan.layout.regions}
    assert reserved.arena.addresses() == reserved.addresses
    assert reserved.arena.check_guards() == []


def test_the_report_shows_the_arena_and_what_the_phases_would_take_apart() -> None:
    result = Bench().run(Plan(), Allocate())
    figures = figures_of(ArenaFigures, result)
    assert figures.arena_bytes == arena_bytes()
    assert figures.sum_of_stage_bytes is not None
    assert figures.sum_of_stage_bytes > arena_bytes()
    kinds = {type(figures) for figures in result.figures}
    assert MemoryFigures not in kinds, "only a later stage knows what libraries took"


def test_an_arena_above_the_limit_is_refused_before_anything_is_allocated() -> None:
    bench = Bench(recipe_of(memory_limit_bytes=arena_bytes() - 1))
    with pytest.raises(HostError, match=r"device\.memory_limit_bytes is \d+; raise it or lower"):
        bench.run(Plan(), Allocate())
    assert bench.kernels.allocations == []
    assert bench.context.writer(RESERVED) is None


def test_an_arena_above_what_is_free_is_refused_before_anything_is_allocated() -> None:
    bench = Bench(kernels=RecordingKernels(free=arena_bytes() - 1))
    with pytest.raises(HostError, match=r"are free; lower server\.cuda_graph_max_bs"):
        bench.run(Plan(), Allocate())
    assert bench.kernels.allocations == []


def test_an_arena_of_exactly_the_limit_and_what_is_free_fits() -> None:
    bench = Bench(recipe_of(memory_limit_bytes=arena_bytes()), RecordingKernels(free=arena_bytes()))
    bench.run(Plan(), Allocate())
    assert bench.context.writer(RESERVED) == "allocate"


@pytest.mark.parametrize(("needed", "free", "limit"), [(10, 10, None), (10, 10, 10), (0, 0, 0), (5, 10, 7)])
def test_what_fits_is_let_through(needed: int, free: int, limit: int | None) -> None:
    require_fit(needed, free=free, limit=limit)


@pytest.mark.parametrize(("needed", "free", "limit"), [(11, 10, None), (11, 100, 10), (1, 0, None), (1, 1, 0)])
def test_what_does_not_fit_is_a_host_error(needed: int, free: int, limit: int | None) -> None:
    with pytest.raises(HostError, match=f"needs {needed} bytes"):
        require_fit(needed, free=free, limit=limit)


def test_without_rules_it_is_skipped_with_the_reason() -> None:
    bench = Bench(recipe_without_rules())
    result = skipped(bench.run(Plan(), Allocate()))
    assert result.reason.startswith(NOT_KNOWN)
