"""Write docs/coverage.md: for every shipped model, layout and server the problems, the M and the kernels per target.

    python benchmarks/coverage.py [--check]

Each distinct problem is discovered once for each target; a row's kernels are those of its problems together. --check
compares the part of the file that needs no discovery, and writes nothing.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bake import choice, say
from pipeline.deepgemm.discovery import Discoverer
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.errors import ConfigError
from pipeline.servers.derive import derive
from pipeline.servers.registry import SERVERS
from pipeline.servers.shared.problems import Problem
from pipeline.target import Target
from pipeline.virtual_gpu.build import build
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel

PROJECT = Path(__file__).parents[1]
DOCUMENT = PROJECT / "docs" / "coverage.md"
LAYOUTS = ("single", "tp4", "tp8", "tp8_ep8", "dp8_ep8", "pp4")
TARGETS = ("h200", "b200")
HEAD = """# What each shipped recipe needs

Problems, numbers of M and DeepGEMM kernels of every shipped model, layout and server, with the servers' default flags.
`python benchmarks/coverage.py` writes this file (sgl-deep-gemm 0.2.3.post2); the tests compare it with the rules.
Problems and M are those of an H200; a B200 server may choose other backends. vLLM brings a deep_gemm of its own, so the
numbers of kernels in its columns are those of the sgl wheel with N and K compiled in.

| model | layout | sglang problems | M | kernels h200 | b200 | vllm problems | M | kernels h200 | b200 |
|---|---|---|---|---|---|---|---|---|---|
"""
REFUSED = """
## Layouts that the server would refuse

| model | layout | server | why |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """One model and layout; a server that refuses it has an error instead of problems."""

    model: str
    layout: str
    problems: dict[tuple[str, str], tuple[Problem, ...] | str]
    """By (server, target)."""

    @property
    def is_refused(self) -> bool:
        """Whether neither server takes it."""
        return all(isinstance(problems, str) for problems in self.problems.values())

    def fast_cells(self, server: str) -> list[str]:
        """Problems and M, known without discovery."""
        problems = self.problems[server, TARGETS[0]]
        if isinstance(problems, str):
            return ["-", "-"]
        return [str(len(problems)), str(sum(len(problem.m) for problem in problems))]


def names(group: str) -> list[str]:
    """The shipped files of a group."""
    return sorted(path.stem for path in (PROJECT / "conf" / group).glob("*.yaml"))


def row_of(model: str, layout: str) -> Row:
    """What the rules say."""
    facts = choice("model", model, Model)
    parallel = choice("parallel", layout, Parallel)
    problems: dict[tuple[str, str], tuple[Problem, ...] | str] = {}
    for server in SERVERS:
        for target in TARGETS:
            flags = choice("server", server, SERVERS[server].flags)
            gpu = choice("target", target, Target)
            try:
                problems[server, target] = derive(facts, parallel, flags, gpu).problems
            except ConfigError as error:
                problems[server, target] = error.lines[0]
    return Row(model, layout, problems)


def all_rows() -> list[Row]:
    """Every shipped model with every layout of the table."""
    return [row_of(model, layout) for model in names("model") for layout in LAYOUTS]


def identity(problem: Problem) -> tuple[object, ...]:
    """What a discovery depends on."""
    return problem.key, tuple(map(tuple, problem.m.to_json()))


def discover(rows: Sequence[Row], target: str, folder: Path) -> dict[tuple[object, ...], tuple[str, ...]]:
    """The kernels of each distinct problem on one target."""
    distinct = {
        identity(problem): problem
        for row in rows
        for server in SERVERS
        if not isinstance(problems := row.problems[server, target], str)
        for problem in problems
    }
    toolkit = find_toolkit()
    gpu = build(choice("target", target, Target), cache_dir=folder / "gpu", cuda_home=toolkit.cuda_home)
    discoverer = Discoverer(gpu, toolkit, Children(), folder / "scratch")
    on_progress = say(f"{target}: {len(distinct)} problems")
    discovery = discoverer.record(list(distinct.values()), folder / target, on_progress)
    return {name: kernels.keys for name, kernels in zip(distinct, discovery.problems, strict=True)}


def cells(row: Row, kernels: dict[str, dict[tuple[object, ...], tuple[str, ...]]]) -> list[str]:
    """One line of the table."""
    line = [row.model, row.layout]
    for server in SERVERS:
        line += row.fast_cells(server)
        for target in TARGETS:
            problems = row.problems[server, target]
            if isinstance(problems, str):
                line.append("-")
            else:
                line.append(str(len({key for problem in problems for key in kernels[target][identity(problem)]})))
    return line


def refusals(rows: Sequence[Row]) -> list[str]:
    """What is refused on the first target, and by whom."""
    return [
        f"| {row.model} | {row.layout} | {server} | {error} |"
        for row in rows
        for server in SERVERS
        if isinstance(error := row.problems[server, TARGETS[0]], str)
    ]


def fast_part(text: str) -> list[list[str]]:
    """The columns of a written table that need no discovery, and the refusals."""
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    return [line if len(line) == 4 else [*line[:4], *line[6:8]] for line in lines]


def document(rows: Sequence[Row], kernels: dict[str, dict[tuple[object, ...], tuple[str, ...]]] | None) -> str:
    """The whole file; without kernels only `fast_part` of it means something."""
    lines = [
        "| "
        + " | ".join(
            cells(row, kernels)
            if kernels is not None
            else [row.model, row.layout, *row.fast_cells("sglang"), "?", "?", *row.fast_cells("vllm"), "?", "?"]
        )
        + " |"
        for row in rows
        if not row.is_refused
    ]
    return HEAD + "\n".join(lines) + "\n" + REFUSED + "\n".join(refusals(rows)) + "\n"


def main() -> None:
    """Write the file, or say where it is out of date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    rows = all_rows()
    if options.check:
        if fast_part(document(rows, None)) != fast_part(DOCUMENT.read_text()):
            raise SystemExit(f"{DOCUMENT} is out of date; run python benchmarks/coverage.py")
        return
    folder = Path(tempfile.mkdtemp(prefix="preheat-coverage-"))
    try:
        kernels = {target: discover(rows, target, folder) for target in TARGETS}
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    DOCUMENT.write_text(document(rows, kernels))
    print(f"{sum(not row.is_refused for row in rows)} rows, {len(refusals(rows))} refusals in {DOCUMENT}")


if __name__ == "__main__":
    main()
