"""Write docs/served.md: what the installed SGLang asks DeepGEMM for, beside what the rules say, family by family.

    python benchmarks/served.py --python sglang/bin/python [--only MODEL] [--layouts tp8,dp8_ep8] [--place DIR]

Every shipped model is started rank by rank on the virtual H200 with moe_runner_backend=deep_gemm and without CUDA
graphs. FlashInfer's, SGLang's and Triton's own kernels are compiled on the way and kept between the models.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bake import choice, say
from pipeline.asking.compare import Difference, compare
from pipeline.asking.flags import environment_of_flags
from pipeline.asking.layout import Asked, Progress, ask_in
from pipeline.engine.children import Children
from pipeline.engine.errors import ConfigError, WarmupError
from pipeline.recipe import Output, Recipe, StoreChoice
from pipeline.virtual_gpu.targets import Target
from pipeline.workload.derive import derive
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel
from pipeline.workload.servers import MoeRunner, Server
from stages.ask import make_starter, ways_to_start

PROJECT = Path(__file__).parents[1]
DOCUMENT = PROJECT / "docs" / "served.md"
LIMIT_S = 600
HEAD = """# Rules against the server

What SGLang 0.5.23 itself asked DeepGEMM for on the virtual H200 (dummy weights, all layers, every pipeline stage, no
CUDA graphs, `moe_runner_backend=deep_gemm`), beside what the rules list.
`python benchmarks/served.py --python PYTHON` writes this file; the tests run DeepSeek-V3 in three of the layouts.
A start that ended early counts for what it asked until then.

| model | layout | both | rules alone | server alone | starts | seconds | how it ended |
|---|---|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """One model and layout."""

    model: str
    layout: str
    differences: tuple[Difference, ...]
    asked: Asked | None
    seconds: float
    ended: str

    @property
    def line(self) -> str:
        """Its line in the table."""
        by = Counter(difference.named_by for difference in self.differences)
        starts = len(self.asked.starts) if self.asked is not None else 0
        counts = f"{by['both']} | {by['rules']} | {by['server']}"
        return f"| {self.model} | {self.layout} | {counts} | {starts} | {self.seconds:.0f} | {self.ended} |"


def row_of(model: str, layout: str, python: str, place: Path) -> Row:
    """Ask the server for one model and layout."""
    recipe = Recipe(
        model=choice("model", model, Model),
        parallel=choice("parallel", layout, Parallel),
        server=choice("server", "sglang", Server),
        target=choice("target", "h200", Target),
        output=Output(dir=str(place / "out")),
        store=StoreChoice(dir=str(place / "store")),
    )
    recipe.server.python, recipe.server.moe_runner_backend = python, MoeRunner.deep_gemm
    recipe.server.disable_cuda_graph = True
    started_s = time.monotonic()
    try:
        problems = derive(recipe.model, recipe.parallel, recipe.server, recipe.target).problems
    except ConfigError as error:
        return Row(model, layout, (), None, 0.0, f"the rules refuse it: {error.problems[0]}")
    starter = make_starter(recipe, Children(), LIMIT_S)
    _, ways = ways_to_start(recipe)
    places = Progress(place / "scratch", lambda done, total: None)
    variables = environment_of_flags(recipe.server, recipe.parallel)
    try:
        asked = ask_in(place / "store", f"{model}-{layout}", starter, ways, variables, places)
    except WarmupError as error:
        return Row(model, layout, (), None, time.monotonic() - started_s, str(error).splitlines()[-1])
    ended = "served to the end" if not asked.faults else asked.faults[0].splitlines()[-1].replace("|", "/")
    seconds = time.monotonic() - started_s
    return Row(model, layout, tuple(compare(problems, asked)), asked, seconds, ended)


def document(rows: Sequence[Row]) -> str:
    """The whole file."""
    lines = [row.line for row in rows]
    text = HEAD + "\n".join(lines) + "\n"
    apart = [
        f"| {row.model} | {row.layout} | {line.named_by} | {line.name} | {line.where.replace('|', '/')} |"
        for row in rows
        for line in row.differences
        if line.named_by != "both"
    ]
    if apart:
        text += "\n## Named by one of the two\n\n| model | layout | by | problem | where |\n|---|---|---|---|---|\n"
        text += "\n".join(apart) + "\n"
    return text


def main() -> None:
    """Ask for every shipped model."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--python", required=True, help="the Python that has SGLang")
    arguments.add_argument("--only", help="one model instead of all; prints instead of writing")
    arguments.add_argument("--layouts", default="tp8", help="layouts of conf/parallel, separated by commas")
    arguments.add_argument("--place", type=Path, help="where answers are kept, so that a second run asks what is new")
    options = arguments.parse_args()
    models = (
        [options.only] if options.only else sorted(path.stem for path in (PROJECT / "conf" / "model").glob("*.yaml"))
    )
    place: Path = options.place or Path(tempfile.mkdtemp(prefix="preheat-served-"))
    rows: list[Row] = []
    try:
        for model in models:
            for layout in options.layouts.split(","):
                rows.append(row_of(model, layout, options.python, place))
                say(rows[-1].line)
    finally:
        if options.place is None:
            shutil.rmtree(place, ignore_errors=True)
    if options.only:
        print(document(rows))
    else:
        DOCUMENT.write_text(document(rows))


if __name__ == "__main__":
    main()
