from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import pytest

from pipeline.engine.context import Slot, View
from pipeline.engine.errors import ConfigError
from pipeline.engine.graph import build_graph, order, to_mermaid
from pipeline.engine.stage import Resource, Result, Stage

RECIPE: Slot[str] = Slot("recipe")
WORK: Slot[str] = Slot("work")
ARENA: Slot[str] = Slot("arena")


@dataclass(kw_only=True)
class Idle(Stage):
    """Declares whatever its subclass says and does nothing."""

    def run(self, ctx: View) -> Result:
        return Result("")


def stage(
    *, reads: tuple[Slot[str], ...] = (), writes: tuple[Slot[str], ...] = (), resource: Resource = Resource.CORES
) -> Stage:
    return type("Declared", (Idle,), {"reads": reads, "writes": writes, "resource": resource})()


def errors_of(stages: dict[str, Stage], needs: dict[str, list[str]]) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        build_graph(stages, needs, seeded=(RECIPE,))
    return refused.value.lines


def test_edges_run_from_a_need_to_the_stage_that_needs_it():
    stages = {"plan": stage(writes=(WORK,)), "align": stage(reads=(WORK,))}
    graph = build_graph(stages, {"plan": [], "align": ["plan"]}, seeded=())
    assert list(graph.edges) == [("plan", "align")]


def test_an_unknown_need_is_answered_with_the_nearest_name_and_all_names():
    stages = {"allocate": stage(), "align": stage()}
    (error,) = errors_of(stages, {"allocate": [], "align": ["alocate"]})
    assert error == (
        "pipeline.stages.align.needs: stage 'alocate' is unknown; did you mean 'allocate'? known: align, allocate"
    )


def test_an_unknown_need_that_resembles_nothing_gets_no_suggestion():
    (error,) = errors_of({"plan": stage()}, {"plan": ["xyzzy"]})
    assert "did you mean" not in error
    assert "known: plan" in error


def test_a_cycle_is_printed_as_a_path_that_returns_to_its_start():
    stages = {name: stage() for name in ("plan", "align", "sweep")}
    (error,) = errors_of(stages, {"plan": ["sweep"], "align": ["plan"], "sweep": ["align"]})
    path = error.split("cycle: ")[1].split(";")[0].split(" -> ")
    assert path[0] == path[-1]
    assert sorted(path[1:]) == ["align", "plan", "sweep"]
    edges = {("sweep", "plan"), ("plan", "align"), ("align", "sweep")}
    assert set(zip(path, path[1:], strict=False)) == edges


def test_a_stage_that_needs_itself_is_a_cycle():
    (error,) = errors_of({"plan": stage()}, {"plan": ["plan"]})
    assert "cycle: plan -> plan" in error


def test_every_cycle_is_reported():
    stages = {name: stage() for name in "abcd"}
    errors = errors_of(stages, {"a": ["b"], "b": ["a"], "c": ["d"], "d": ["c"]})
    assert len(errors) == 2
    assert all("cycle" in error for error in errors)


def test_two_writers_of_one_slot_are_named_together():
    stages = {"plan": stage(writes=(WORK,)), "align": stage(writes=(WORK,))}
    (error,) = errors_of(stages, {"plan": [], "align": ["plan"]})
    assert "plan and align both write 'work'" in error


def test_a_read_whose_writer_is_not_an_ancestor_says_which_need_to_add():
    stages = {"plan": stage(writes=(WORK,)), "align": stage(reads=(WORK,))}
    (error,) = errors_of(stages, {"plan": [], "align": []})
    assert error == ("pipeline.stages.align: reads 'work', which none of its ancestors writes; add 'plan' to its needs")


def test_a_read_that_no_selected_stage_writes_says_so():
    (error,) = errors_of({"align": stage(reads=(ARENA,))}, {"align": []})
    assert "reads 'arena'" in error
    assert "no selected stage writes it" in error


def test_a_stage_does_not_satisfy_its_own_read():
    (error,) = errors_of({"plan": stage(reads=(WORK,), writes=(WORK,))}, {"plan": []})
    assert "plan: reads 'work', which none of its ancestors writes" in error


def test_an_ancestor_at_any_distance_satisfies_a_read():
    stages = {"plan": stage(writes=(WORK,)), "align": stage(), "sweep": stage(reads=(WORK,))}
    graph = build_graph(stages, {"plan": [], "align": ["plan"], "sweep": ["align"]}, seeded=())
    assert order(graph) == ["plan", "align", "sweep"]


def test_a_seeded_slot_needs_no_writer():
    graph = build_graph({"plan": stage(reads=(RECIPE,))}, {"plan": []}, seeded=(RECIPE,))
    assert order(graph) == ["plan"]


def test_unknown_needs_two_writers_and_unwritten_reads_come_in_one_error():
    stages = {
        "plan": stage(writes=(WORK,)),
        "align": stage(writes=(WORK,)),
        "sweep": stage(reads=(ARENA,)),
    }
    errors = errors_of(stages, {"plan": [], "align": ["plam"], "sweep": ["algn"]})
    assert len(errors) == 4
    text = "\n".join(errors)
    for part in ("'plam'", "'algn'", "both write 'work'", "reads 'arena'"):
        assert part in text


def test_a_cycle_hides_neither_an_unknown_need_nor_two_writers():
    stages = {
        "plan": stage(writes=(WORK,)),
        "align": stage(writes=(WORK,)),
        "sweep": stage(),
    }
    text = "\n".join(errors_of(stages, {"plan": ["align"], "align": ["plan"], "sweep": ["plam"]}))
    for part in ("cycle", "'plam'", "both write 'work'"):
        assert part in text


def test_the_message_of_the_error_has_one_line_for_each_thing_that_is_wrong():
    with pytest.raises(ConfigError) as refused:
        build_graph({"plan": stage()}, {"plan": ["a1", "b2"]}, seeded=())
    assert str(refused.value).splitlines() == refused.value.lines
    assert refused.value.exit_code == 2


def test_a_graph_without_a_stage_is_refused_with_the_stages_there_are():
    with pytest.raises(ConfigError) as refused:
        build_graph({}, {}, seeded=(), known=["plan", "align"])
    assert refused.value.lines == ["pipeline.stages selects no stage; name at least one of plan, align"]


def test_a_slot_that_a_stage_may_read_needs_no_writer():
    class MayRead(Idle):
        """Does without the slot where nobody wrote it."""

        may_read = (WORK,)

    stages = {"plan": stage(writes=(WORK,)), "align": MayRead()}
    assert order(build_graph(stages, {"plan": [], "align": []}, seeded=())) == ["plan", "align"]
    assert order(build_graph({"align": MayRead()}, {"align": []}, seeded=())) == ["align"]


def test_order_puts_needs_first_and_keeps_the_order_of_the_yaml_otherwise():
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(["export", "sweep", "autotune", "plan"])
    graph.add_edges_from([("plan", "sweep"), ("plan", "autotune"), ("sweep", "export"), ("autotune", "export")])
    assert order(graph) == ["plan", "sweep", "autotune", "export"]


def test_mermaid_draws_every_edge_and_device_stages_as_hexagons():
    stages = {"plan": stage(), "tune": stage(resource=Resource.DEVICE)}
    graph = build_graph(stages, {"plan": [], "tune": ["plan"]}, seeded=())
    assert to_mermaid(graph, stages).splitlines() == [
        "flowchart LR",
        "    plan[plan]",
        "    tune{{tune}}",
        "    plan --> tune",
    ]
