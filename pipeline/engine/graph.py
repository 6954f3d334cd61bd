"""Build the graph of stages from the `needs` in YAML, and check it against the stages' contracts before any work."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx as nx

from pipeline.engine.context import Slot
from pipeline.engine.errors import ConfigError, unknown
from pipeline.engine.stage import Resource, Stage

WHERE = "pipeline.stages"


def build_graph(
    stages: Mapping[str, Stage],
    needs: Mapping[str, Sequence[str]],
    *,
    seeded: Iterable[Slot[Any]],
    known: Sequence[str] = (),
) -> nx.DiGraph[str]:
    """A graph whose edges run from a need to the stage that needs it; ConfigError lists everything wrong with it.

    `known` are the names of all stages there are, for the message about one that is not.
    """
    graph: nx.DiGraph[str] = nx.DiGraph()
    graph.add_nodes_from(name for name in needs if name in stages)
    errors = [f"{WHERE}: " + unknown("stage", name, known or list(stages)) for name in needs if name not in stages]
    if not needs:
        errors.append(f"{WHERE} selects no stage; name at least one of {', '.join(known or stages)}")
    for name in graph.nodes:
        for need in needs[name]:
            if need not in needs:
                errors.append(f"{WHERE}.{name}.needs: " + unknown("stage", need, list(needs)))
            elif need in stages:
                graph.add_edge(need, name)
    writers = _writers(graph, stages)
    errors += _two_writers(writers)
    # In a cycle every stage is its own ancestor, so reads can be judged only without one.
    errors += _cycles(graph) or _unwritten_reads(graph, stages, writers, {slot.name for slot in seeded})
    if errors:
        raise ConfigError(*errors)
    return graph


def order(graph: nx.DiGraph[str]) -> list[str]:
    """Stages, each after its needs; ties in the order of the YAML."""
    place = {name: index for index, name in enumerate(graph.nodes)}
    return list(nx.lexicographical_topological_sort(graph, key=place.__getitem__))


def to_mermaid(graph: nx.DiGraph[str], stages: Mapping[str, Stage]) -> str:
    """The graph as a Mermaid flow chart; stages that hold the device are drawn as hexagons."""
    lines = ["flowchart LR"]
    for name in order(graph):
        on_device = stages[name].resource is Resource.DEVICE
        lines.append(f"    {name}{{{{{name}}}}}" if on_device else f"    {name}[{name}]")
    lines += [f"    {need} --> {name}" for need, name in graph.edges]
    return "\n".join(lines) + "\n"


def _cycles(graph: nx.DiGraph[str]) -> list[str]:
    return [
        f"{WHERE}: needs form a cycle: {' -> '.join([*cycle, cycle[0]])}; remove one of them"
        for cycle in nx.simple_cycles(graph)
    ]


def _writers(graph: nx.DiGraph[str], stages: Mapping[str, Stage]) -> dict[str, list[str]]:
    writers: dict[str, list[str]] = {}
    for name in graph.nodes:
        for slot in stages[name].writes:
            writers.setdefault(slot.name, []).append(name)
    return writers


def _two_writers(writers: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f"{WHERE}: {' and '.join(names)} both write {slot!r}; keep one of them"
        for slot, names in writers.items()
        if len(names) > 1
    ]


def _unwritten_reads(
    graph: nx.DiGraph[str], stages: Mapping[str, Stage], writers: Mapping[str, Sequence[str]], seeded: set[str]
) -> list[str]:
    errors: list[str] = []
    for name in graph.nodes:
        ancestors = nx.ancestors(graph, name)
        for slot in stages[name].reads:
            if slot.name not in seeded and not ancestors.intersection(writers.get(slot.name, ())):
                by = writers.get(slot.name)
                hint = f"add {by[0]!r} to its needs" if by else "no selected stage writes it"
                errors.append(f"{WHERE}.{name}: reads {slot.name!r}, which none of its ancestors writes; {hint}")
    return errors
