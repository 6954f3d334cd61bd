"""Compose a recipe, validate it, build the graph, run it, report: python run.py model=deepseek parallel=pp4."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from pipeline.engine import config
from pipeline.engine.command_line import CommandLine, parse
from pipeline.engine.errors import ConfigError, WarmupError
from pipeline.engine.graph import build_graph
from pipeline.engine.overrides import Checker, without_sweeps
from pipeline.engine.report import exit_code, summary_table
from pipeline.engine.stage import Stage
from pipeline.engine.validation import option_errors, selected_stages, unselected_options, validated_graph
from pipeline.recipe import Mode, Recipe
from pipeline.servers.registry import SERVERS
from pipeline.session import Session
from pipeline.slots import SEEDED
from stages import all_stages

CONF = Path(__file__).parent / "conf"
NO_RUN_FOLDER = ("hydra.run.dir=.", "hydra.sweep.dir={}", "hydra.sweep.subdir=.", "hydra.output_subdir=null")
# Written as they are: other programs' arguments, and sizes with commas, are no lists and no sweeps of Hydra's.
FREE_TEXT = ("server.args", "plan.explain")
SCHEMA = config.make_schema(Recipe, all_stages(), {"server": {name: each.flags for name, each in SERVERS.items()}})


def main(arguments: Sequence[str]) -> int:
    """Run one recipe, or several with --multirun; returns the exit code (the largest of several)."""
    config.register(SCHEMA)
    codes: list[int] = []
    try:
        line = parse(arguments, FREE_TEXT)
        shared = checked(line)
    except WarmupError as error:
        return complain(error)

    def task(raw: DictConfig) -> None:
        codes.append(code_of(lambda: execute(raw)))

    with tempfile.TemporaryDirectory() as nowhere:
        # A plan touches nothing, but Hydra wants a folder for several of them.
        quiet = [value.format(nowhere) for value in NO_RUN_FOLDER] if shared.mode is Mode.plan else []
        sys.argv = [sys.argv[0], *line.arguments(*quiet)]
        hydra.main(config_path=str(CONF), config_name="config", version_base="1.3")(task)()
    return max(codes, default=0)


def checked(line: CommandLine) -> DictConfig:
    """What the recipes of this command line share; ConfigError with everything that is wrong with its overrides."""
    if line.recipe_file is not None:
        config.require_replayable(line.recipe_file, SCHEMA)
    folders = [CONF, *line.config_dirs]
    checker = Checker(schema=SCHEMA, config_dirs=folders, config_name=line.config_name, stages=sorted(all_stages()))
    if errors := checker.errors(line.overrides):
        raise ConfigError(*errors)
    overrides = without_sweeps(line.overrides) if line.is_multirun else line.overrides
    return config.composed(overrides, CONF, config_name=line.config_name, more_dirs=line.config_dirs)


def execute(raw: DictConfig) -> int:
    """Plan or run one composed recipe; returns the exit code."""
    overrides = HydraConfig.get().overrides.task
    if raw.mode is Mode.verify:
        changed = [override for override in overrides if override.lstrip("+~").startswith("pipeline")]
        if changed not in ([], ["pipeline=verify"]):
            raise ConfigError(f"mode=verify is pipeline=verify as it is; leave one of them out to change it: {changed}")
        raw = config.with_pipeline(raw, CONF / "pipeline" / f"{Mode.verify.name}.yaml")
    recipe: Recipe = config.to_recipe(raw)
    known = all_stages()
    needs = {name: node.needs for name, node in recipe.pipeline.stages.items()}
    stages = selected_stages(recipe, needs, known)
    errors = option_errors(recipe, stages) + unselected_options(overrides, needs, known)
    errors += recipe.output.config_errors()
    graph = validated_graph(errors, lambda: build_graph(stages, needs, seeded=SEEDED, known=sorted(known)))
    if recipe.mode is Mode.plan:
        return show_plan(recipe, stages)
    session = Session(recipe, config.to_yaml(raw, SCHEMA), Path(HydraConfig.get().runtime.output_dir))
    outcomes = session.run(graph, stages)
    session.write_report(outcomes, stages)
    print(summary_table(f"{recipe.name}: report in {session.folder}", outcomes).render(), end="")
    for outcome in outcomes:
        for table in outcome.tables:
            print(table.render(), end="")
        if outcome.error is not None:
            complain(outcome.error)
    return exit_code(outcomes)


def show_plan(recipe: Recipe, stages: Mapping[str, Stage]) -> int:
    """Print what each stage would do; a reader that has seen enough (head, less) ends it quietly."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    for stage in stages.values():
        if (preview := stage.preview(recipe)) is not None:
            print(preview)
    return 0


def code_of(attempt: Callable[[], int]) -> int:
    """The attempt's exit code; a WarmupError is printed and gives its own."""
    try:
        return attempt()
    except WarmupError as error:
        return complain(error)


def complain(error: WarmupError) -> int:
    """Print what is wrong, one line for each thing; returns the exit code."""
    for line in str(error).splitlines():
        print(f"error: {line}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
