"""Write docs/served.md: what the installed SGLang asks DeepGEMM for, beside what the rules say, family by family.

    python benchmarks/served.py --python sglang/bin/python [--only MODEL] [--layouts tp8/tp4,dp8_ep8] [--place DIR]

Every shipped model is started rank by rank on the virtual H200 without CUDA graphs, in the first of the layouts that
its sizes allow, with moe_runner_backend=deep_gemm where SGLang has that runner for it. FlashInfer's, SGLang's and
Triton's own kernels are compiled on the way and kept between the models.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bake import choice
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.errors import ConfigError, WarmupError
from pipeline.recipe import Output, Recipe, StoreChoice
from pipeline.servers.derive import derive
from pipeline.servers.sglang.flags import MoeRunner, SglangFlags
from pipeline.servers.shared.answer import ServerAnswer, ask_and_keep, recall
from pipeline.servers.shared.compare import Difference, compare
from pipeline.servers.shared.digest import answer_digest
from pipeline.servers.shared.problems import Problem
from pipeline.target import Target
from pipeline.virtual_gpu.build import build
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel
from stages.find_server import prepare_inquiry

PROJECT = Path(__file__).parents[1]
DOCUMENT = PROJECT / "docs" / "served.md"
LIMIT_S = 300
LAYOUTS = "tp8/tp4/tp2/single,dp8_ep8/dp4_ep4"
# A terabyte of weights leaves no room on 8 cards.
LAYOUTS_OF = {"kimi_k2": "tp16,dp16_ep16"}
# Its table of 1048576 token slots for each request takes 8 GiB, which SGLang's own share of memory leaves no room for.
FLAGS = {"glm52": "--mem-fraction-static 0.75"}
# With FP4 experts FlashInfer's fused_moe is built, which takes hours here.
CHANGES = {"deepseek_v4_flash": {"expert_dtype": "fp8"}}
FRAME = re.compile(r'File ".*/(?P<file>[^"]+)", line \d+ in (?P<function>\S+)')
HEAD = """# Rules against the server

What SGLang 0.5.23 itself asked DeepGEMM for on the virtual H200 (dummy weights, all layers, every pipeline stage, no
CUDA graphs), beside what the rules list. The layout is the first of tp8, tp4, tp2 and single
that the model's sizes allow, and of dp8_ep8 and dp4_ep4; the runner is DeepGEMM's where SGLang has it for the model.
`python benchmarks/served.py --python PYTHON` writes this file; the tests run DeepSeek-V3 in three of the layouts.
A start that ended early counts for what it asked until then.

| model | layout, MoE runner | both | rules alone | server alone | starts | seconds | how it ended |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """One model and layout."""

    model: str
    layout: str
    differences: tuple[Difference, ...]
    answer: ServerAnswer | None
    ended: str

    @property
    def line(self) -> str:
        """Its line in the table."""
        by = Counter(difference.named_by for difference in self.differences)
        starts, seconds = (len(self.answer.starts), self.answer.seconds) if self.answer is not None else (0, 0.0)
        counts = f"{by['both']} | {by['rules']} | {by['server']}"
        return f"| {self.model} | {self.layout} | {counts} | {starts} | {seconds:.0f} | {self.ended} |"


@dataclass(frozen=True)
class Chosen:
    """What is asked for one model: recipe, what to call it, and what the rules list."""

    recipe: Recipe
    name: str
    problems: tuple[Problem, ...]


def recipe_of(model: str, layouts: Sequence[str], python: str, place: Path) -> Chosen | str:
    """The first layout and runner that the rules accept, or why they accept none."""
    refused: list[str] = []
    for layout, runner in product(layouts, (MoeRunner.deep_gemm, MoeRunner.auto)):
        flags = choice("server", "sglang", SglangFlags)
        flags.python = python
        flags.moe_runner_backend = runner
        flags.disable_cuda_graph = True
        flags.args = FLAGS.get(model)
        flags.start_limit_s = LIMIT_S
        recipe = Recipe(
            model=choice("model", model, Model),
            parallel=choice("parallel", layout, Parallel),
            server=flags,
            target=choice("target", "h200", Target),
            output=Output(dir=str(place / "out")),
            store=StoreChoice(dir=str(place / "store")),
        )
        recipe.model.config |= CHANGES.get(model, {})
        try:
            workload = derive(recipe.model, recipe.parallel, recipe.server, recipe.target)
        except ConfigError as error:
            refused += error.lines
            continue
        changed = ", ".join(f"{key}: {value}" for key, value in CHANGES.get(model, {}).items())
        name = " ".join(filter(None, [f"{layout}, {runner.name}", recipe.server.args, changed]))
        return Chosen(recipe, name, workload.problems)
    return f"the rules refuse it: {refused[-1]}"


def row_of(model: str, layouts: Sequence[str], python: str, place: Path) -> Row:
    """Ask the server for one model."""
    chosen = recipe_of(model, layouts, python, place)
    if isinstance(chosen, str):
        return Row(model, layouts[-1], (), None, chosen)
    recipe = chosen.recipe
    name = chosen.name
    places = recipe.places
    toolkit = find_toolkit()
    try:
        gpu = build(recipe.target, cache_dir=places.virtual_gpus, cuda_home=toolkit.cuda_home)
        inquiry = prepare_inquiry(recipe, places, toolkit, gpu, Children())
        digest = answer_digest(inquiry)
        answer = recall(places.store, digest) or ask_and_keep(
            places.store, digest, lambda deep_gemm: inquiry.ask(deep_gemm, lambda done, total: None)
        )
    except WarmupError as error:
        return Row(model, name, (), None, str(error).splitlines()[-1])
    ended = ended_of(answer.faults[0].splitlines()) if answer.faults else "served to the end"
    announced = inquiry.starter.askable.announced_kernels
    return Row(model, name, tuple(compare(chosen.problems, answer, announced)), answer, ended)


def ended_of(lines: Sequence[str]) -> str:
    """The last line of the server, or where it hung: the innermost frame of the first stack."""
    stack = next((index for index, line in enumerate(lines) if "most recent call first" in line), None)
    if "server.start_limit_s" in lines[0]:
        frame = FRAME.search(lines[stack + 1]) if stack is not None else None
        innermost = f" in {frame['file']}, {frame['function']}" if frame else ""
        return f"not at its end after {LIMIT_S} s{innermost}"
    return lines[-1].replace("|", "/")


def apart(row: Row) -> list[str]:
    """A line of the second table for each problem that only one of the two names."""
    return [
        f"| {row.model} | {row.layout} | {line.named_by} | {line.name} | {line.where.replace('|', '/')} |"
        for line in row.differences
        if line.named_by != "both"
    ]


def document(rows: Sequence[Row], before: str) -> str:
    """The whole file: these rows, and those of other models as they were `before`."""
    replaced = {"model", *(row.model for row in rows)}
    kept = [line for line in before.splitlines() if line.startswith("| ") and model_of(line) not in replaced]
    tables = [row.line for row in rows], [line for row in rows for line in apart(row)]
    first, second = (
        sorted([*new, *(line for line in kept if line.count(" | ") == columns - 1)], key=model_of)
        for new, columns in zip(tables, (8, 5), strict=True)
    )
    text = HEAD + "\n".join(first) + "\n"
    if second:
        text += "\n## Named by one of the two\n\n| model | layout | by | problem | where |\n|---|---|---|---|---|\n"
        text += "\n".join(second) + "\n"
    return text


def model_of(line: str) -> str:
    """The first cell."""
    return line.split(" | ")[0].removeprefix("| ")


def main() -> None:
    """Ask for every shipped model."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--python", required=True, help="the Python that has SGLang")
    arguments.add_argument("--only", help="one model instead of all; the rows of the others stay")
    arguments.add_argument("--layouts", help="separated by commas, each the first of several that the model allows")
    arguments.add_argument("--place", type=Path, help="where answers are kept, so that a second run asks what is new")
    options = arguments.parse_args()
    models = (
        [options.only] if options.only else sorted(path.stem for path in (PROJECT / "conf" / "model").glob("*.yaml"))
    )
    place: Path = options.place or Path(tempfile.mkdtemp(prefix="preheat-served-"))
    rows: list[Row] = []
    try:
        for model in models:
            for layouts in (options.layouts or LAYOUTS_OF.get(model, LAYOUTS)).split(","):
                rows.append(row_of(model, layouts.split("/"), options.python, place))
                print(rows[-1].line, flush=True)
    finally:
        if options.place is None:
            shutil.rmtree(place, ignore_errors=True)
    before = DOCUMENT.read_text() if options.only and DOCUMENT.exists() else ""
    DOCUMENT.write_text(document(rows, before))


if __name__ == "__main__":
    main()
