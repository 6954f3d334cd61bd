"""One run of a graph: what it starts from, who listens to it, and what it leaves in its run folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import networkx as nx
from rich.console import Console

from pipeline.engine.children import Children, interruptible
from pipeline.engine.context import Context
from pipeline.engine.display import LogDisplay, TerminalDisplay
from pipeline.engine.events import Events, JsonLines, Timeline
from pipeline.engine.graph import to_mermaid
from pipeline.engine.report import build_report, to_json, write_atomically
from pipeline.engine.runner import Outcome, Services, run
from pipeline.engine.stage import Stage
from pipeline.kernels.load import load_kernels
from pipeline.recipe import Recipe
from pipeline.slots import CHILDREN, EVENTS, KERNELS, PLACES, RECIPE, RECIPE_YAML

log = logging.getLogger("preheat")


@dataclass(frozen=True, slots=True)
class Session:
    """One run; its log, events, timeline, graph and report go into `folder`."""

    recipe: Recipe
    recipe_yaml: str
    folder: Path

    def run(self, graph: nx.DiGraph[str], stages: Mapping[str, Stage]) -> list[Outcome]:
        """Run the graph with everything that listens to it."""
        log_to(self.folder / "run.log")
        (self.folder / "dag.mmd").write_text(to_mermaid(graph, stages))
        kernels = load_kernels(self.recipe.device.kind, self.folder)
        children = Children()
        display = TerminalDisplay(Console(stderr=True)) if sys.stderr.isatty() else LogDisplay()
        lines = JsonLines(self.folder / "events.jsonl")
        timeline = Timeline()
        events = Events(lines, timeline, display)
        context = Context()
        context.seed(RECIPE, self.recipe)
        context.seed(RECIPE_YAML, self.recipe_yaml)
        context.seed(PLACES, self.recipe.places)
        context.seed(EVENTS, events)
        context.seed(CHILDREN, children)
        context.seed(KERNELS, kernels)
        try:
            with interruptible(children):
                services = Services(children, events, kernels.meter)
                return run(graph, stages, context, services, on_error=self.recipe.on_error)
        finally:
            display.close()
            lines.close()
            timeline.write(self.folder / "timeline.json")

    def write_report(self, outcomes: Sequence[Outcome], stages: Mapping[str, Stage]) -> None:
        """report.json beside the log, and in the output directory when a stage leaves something there."""
        report: dict[str, Any] = build_report(outcomes, stages)
        report |= {"recipe": self.recipe.name, "run_dir": str(self.folder)}
        write_atomically(self.folder / "report.json", to_json(report))
        if any(stage.leaves_output for stage in stages.values()):
            try:
                write_atomically(self.recipe.places.output / "report.json", to_json(report))
            except OSError as error:
                log.warning("report.json is only in %s: %s", self.folder, error)


def log_to(path: Path) -> None:
    """Log to standard error, and with the time of day to a file. Hydra's own logging is off (hydra_settings)."""
    file = logging.FileHandler(path)
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handlers = [file, logging.StreamHandler(sys.stderr)]
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=handlers, force=True)
