"""Compose a recipe, validate it, build the graph, run it, report: python run.py model=deepseek parallel=pp4."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from pipeline.engine import config
from pipeline.engine.children import Children, interruptible
from pipeline.engine.command_line import parse
from pipeline.engine.context import Context
from pipeline.engine.display import LogDisplay, TerminalDisplay
from pipeline.engine.errors import ConfigError, WarmupError
from pipeline.engine.events import Event, Events, JsonLines, Kind, Timeline
from pipeline.engine.graph import build_graph, to_mermaid
from pipeline.engine.report import build_report, exit_code, to_json, write_atomically
from pipeline.engine.runner import Outcome, Services, run
from pipeline.engine.stage import Stage
from pipeline.engine.tables import Table
from pipeline.recipe import DeviceKind, Mode, Recipe
from pipeline.slots import ALLOCATED, CHILDREN, EVENTS, KERNELS, RECIPE, RECIPE_YAML, SEEDED
from stages import all_stages
from stages.ask import difference_table
from stages.plan import Plan, PlanFormat, explanation, explanation_table, make_plan, plan_json, plan_tables

if TYPE_CHECKING:
    from pipeline.kernels import Kernels

CONF = Path(__file__).parent / "conf"
NO_RUN_FOLDER = ("hydra.run.dir=.", "hydra.sweep.dir={}", "hydra.sweep.subdir=.", "hydra.output_subdir=null")
# Written as they are: other programs' arguments, and sizes with commas, are no lists and no sweeps of Hydra's.
FREE_TEXT = ("server.args", "plan.explain")
log = logging.getLogger("preheat")


def main(arguments: Sequence[str]) -> int:
    """Run one recipe, or several with --multirun; returns the exit code (the largest of several)."""
    schema = config.make_schema(Recipe, all_stages())
    config.register(schema)
    codes: list[int] = []

    def task(raw: DictConfig) -> None:
        codes.append(told(lambda: execute(raw)))

    try:
        line = parse(arguments, FREE_TEXT)
        if problems := config.override_problems(line.overrides, schema, [CONF, *line.config_dirs], all_stages()):
            raise ConfigError(*problems)
        overrides = config.without_sweeps(line.overrides) if line.is_multirun else line.overrides
        shared = config.composed(overrides, CONF, config_name=line.config_name, more_dirs=line.config_dirs)
    except WarmupError as error:
        return tell(error)
    with tempfile.TemporaryDirectory() as nowhere:
        # A plan touches nothing, but Hydra wants a folder for several of them.
        quiet = [value.format(nowhere) for value in NO_RUN_FOLDER] if shared.mode is Mode.plan else []
        sys.argv = [sys.argv[0], *line.arguments(*quiet)]
        hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(task)()
    return max(codes, default=0)


def execute(raw: DictConfig) -> int:
    """Plan, run or verify one composed recipe; returns the exit code."""
    recipe: Recipe = config.to_recipe(raw)
    needs = {name: node.needs for name, node in recipe.pipeline.stages.items()}
    stages = select(recipe, needs)
    graph = validate(recipe, stages, needs)
    if recipe.mode is Mode.plan:
        plan = stages.get("plan")
        show_plan(recipe, needs, plan if isinstance(plan, Plan) else Plan())
        return 0
    folder = Path(HydraConfig.get().runtime.output_dir)
    log_to(folder / "run.log")
    (folder / "dag.mmd").write_text(to_mermaid(graph, stages))
    outcomes = run_stages(recipe, config.to_yaml(raw), graph, stages, folder)
    report: dict[str, Any] = build_report(outcomes, stages)
    report |= {"recipe": recipe.name, "run_dir": str(folder)}
    write_report(report, recipe, folder)
    print(summary(outcomes, recipe, folder).render(), end="")
    if differences := difference_table(report.get("server", {})):
        print(differences.render(), end="")
    for outcome in outcomes:
        if outcome.error is not None:
            tell(outcome.error)
    return exit_code(outcomes)


def select(recipe: Recipe, needs: Mapping[str, Sequence[str]]) -> dict[str, Stage]:
    """The stage objects that the pipeline names: the recipe holds those with options."""
    table = all_stages()
    return {name: getattr(recipe, name) if fields(table[name]) else table[name]() for name in needs if name in table}


def validate(recipe: Recipe, stages: Mapping[str, Stage], needs: Mapping[str, Sequence[str]]) -> Any:
    """The graph; ConfigError with everything that is wrong with graph, options, model and layout together."""
    problems = [problem for stage in stages.values() for problem in stage.problems()]
    problems += unselected(needs) + recipe.output.problems()
    graph = None
    for attempt in (
        lambda: build_graph(stages, needs, seeded=SEEDED, known=sorted(all_stages())),
        lambda: make_plan(recipe),
    ):
        try:
            result = attempt()
            graph = graph or result
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(*problems)
    return graph


def unselected(needs: Mapping[str, Sequence[str]]) -> list[str]:
    """Options given for a stage that the pipeline does not select."""
    given = {override.lstrip("+~").split("=")[0].split(".")[0] for override in HydraConfig.get().overrides.task}
    return [
        f"{name} has options, but the pipeline selects no stage of that name; selected: {', '.join(needs)}"
        for name in sorted(given & (all_stages().keys() - needs.keys()))
    ]


def show_plan(recipe: Recipe, needs: Mapping[str, list[str]], plan: Plan) -> None:
    """Print the plan to standard output; a reader that has seen enough (head, less) ends it quietly."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    workload, buffers = make_plan(recipe)
    if plan.format is PlanFormat.json:
        explained = {} if plan.explain is None else {"explain": explanation(workload, plan.explain)}
        print(json.dumps(plan_json(workload, buffers, needs) | explained))
        return
    if plan.explain is not None:
        print(explanation_table(workload, plan.explain).render())
        return
    for table in plan_tables(workload, buffers):
        print(table.render())
    stages = Table("Stages", ("stage", "needs"))
    for name, wanted in needs.items():
        stages.add(name, ", ".join(wanted))
    print(stages.render())


def run_stages(
    recipe: Recipe, recipe_yaml: str, graph: Any, stages: Mapping[str, Stage], folder: Path
) -> list[Outcome]:
    """Run the graph with everything that listens to it."""
    kernels = load_kernels(recipe.device.kind, folder)
    children = Children()
    allocated = dict[str, int | None]()

    def note_allocations(event: Event) -> None:
        if event.kind is Kind.FINISHED:
            allocated[event.stage] = event.data.get("allocated_bytes")

    display = TerminalDisplay(Console(stderr=True)) if sys.stderr.isatty() else LogDisplay()
    lines = JsonLines(folder / "events.jsonl")
    timeline = Timeline()
    events = Events(note_allocations, lines, timeline, display)
    context = Context()
    context.seed(RECIPE, recipe)
    context.seed(RECIPE_YAML, recipe_yaml)
    context.seed(ALLOCATED, allocated)
    context.seed(EVENTS, events)
    context.seed(CHILDREN, children)
    context.seed(KERNELS, kernels)
    try:
        with interruptible(children):
            return run(graph, stages, context, Services(children, events, kernels.meter), on_error=recipe.on_error)
    finally:
        display.close()
        lines.close()
        timeline.write(folder / "timeline.json")


def load_kernels(kind: DeviceKind, folder: Path) -> Kernels:
    """The kernels of a device; imported here, because a plan needs neither torch nor a GPU."""
    if kind is DeviceKind.cuda:
        # DeepGEMM reads this at its first kernel. The baked cache is linked into it, so the forward runs over what
        # this recipe publishes and can add nothing to it.
        cache_dir = (folder / "deep_gemm").absolute()
        os.environ["DG_JIT_CACHE_DIR"] = str(cache_dir)
        from pipeline.kernels.cuda import CudaKernels

        return CudaKernels(cache_dir)
    from pipeline.kernels.reference import ReferenceKernels

    return ReferenceKernels()


def write_report(report: Mapping[str, Any], recipe: Recipe, folder: Path) -> None:
    """report.json beside the log, and in the output directory when this run made it."""
    write_atomically(folder / "report.json", to_json(report))
    if recipe.mode is Mode.run:
        try:
            write_atomically(Path(recipe.output.dir) / "report.json", to_json(report))
        except OSError as error:
            log.warning("report.json is only in %s: %s", folder, error)


def summary(outcomes: Sequence[Outcome], recipe: Recipe, folder: Path) -> Table:
    """One row for each stage."""
    table = Table(f"{recipe.name}: report in {folder}", ("stage", "status", "seconds", "allocated", "what"))
    for outcome in outcomes:
        seconds = "" if outcome.seconds is None else f"{outcome.seconds:.1f}"
        allocated = "" if outcome.allocated_bytes is None else f"{outcome.allocated_bytes:+d} B"
        table.add(outcome.name, outcome.status.value, seconds, allocated, (outcome.reason or "").split("\n")[0])
    return table


def log_to(path: Path) -> None:
    """Log to standard error, and with the time of day to a file. Hydra's own logging is off (hydra_settings)."""
    file = logging.FileHandler(path)
    stderr = logging.StreamHandler(sys.stderr)
    file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[file, stderr], force=True)


def told(attempt: Callable[[], int]) -> int:
    """The attempt's exit code; a WarmupError is told to the user and becomes its own."""
    try:
        return attempt()
    except WarmupError as error:
        return tell(error)


def tell(error: WarmupError) -> int:
    """Print what is wrong, one line a problem."""
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
