"""Everything that is wrong with a recipe's graph and options, found before any work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

import networkx as nx

from pipeline.engine.errors import ConfigError
from pipeline.engine.stage import Stage


def selected_stages(recipe: Any, names: Collection[str], table: Mapping[str, type[Stage]]) -> dict[str, Stage]:
    """The stage objects that the pipeline names: the recipe holds those with options."""
    return {name: getattr(recipe, name) if fields(table[name]) else table[name]() for name in names if name in table}


def option_errors(recipe: Any, stages: Mapping[str, Stage]) -> list[str]:
    """What is wrong with the options of the selected stages, and with what they read of the recipe."""
    return [line for stage in stages.values() for line in stage.config_errors(recipe)]


def unselected_options(given: Iterable[str], needs: Collection[str], known: Collection[str]) -> list[str]:
    """Options given for a stage that the pipeline does not select; `given` are overrides as they were typed."""
    sections = {override.lstrip("+~").split("=")[0].split(".")[0] for override in given}
    return [
        f"{name} has options, but the pipeline selects no stage of that name; selected: {', '.join(needs)}"
        for name in sorted(sections.intersection(known) - set(needs))
    ]


def validated_graph(errors: Sequence[str], build: Callable[[], nx.DiGraph[str]]) -> nx.DiGraph[str]:
    """The graph that `build` makes; ConfigError with `errors` and with what `build` finds, together."""
    try:
        graph = build()
    except ConfigError as error:
        raise ConfigError(*errors, *error.lines) from error
    if errors:
        raise ConfigError(*errors)
    return graph
