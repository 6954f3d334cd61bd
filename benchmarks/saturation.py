"""From which M on no new kernel appears: the reason why lists of M may end where the servers end them.

python benchmarks/saturation.py
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.bake import choice
from pipeline.deepgemm.discovery import Discoverer, ProblemKernels
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.tables import Table
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.target import Target
from pipeline.virtual_gpu.build import build

DENSE = MList((range(1, 65537),))
ALIGNED = MList((range(128, 131073, 128),))
SHAPES = [
    *((Kernel.DENSE, n, k, 1) for n, k in ((2112, 7168), (7168, 2048), (4608, 7168), (24576, 1536))),
    *((Kernel.MASKED, n, k, g) for n, k, g in ((4096, 7168, 32), (7168, 2048, 32), (512, 7168, 257))),
    *((Kernel.CONTIGUOUS, n, k, g) for n, k, g in ((4096, 7168, 32), (7168, 2048, 32), (512, 7168, 257))),
]


def last_new_m(kernels: ProblemKernels) -> int:
    """The M at which the last kernel is seen first."""
    first: dict[str, int] = {}
    for start, _, keys in kernels.runs:
        for key in keys:
            first.setdefault(key, start)
    return max(first.values())


def main() -> None:
    """Print one table for two architectures."""
    problems = [
        Problem(
            kernel=kernel,
            n=n,
            k=k,
            groups=g,
            m=ALIGNED if kernel is Kernel.CONTIGUOUS else DENSE,
            linears=(),
            layers=(),
            ranks=(),
        )
        for kernel, n, k, g in SHAPES
    ]
    table = Table("M at which the last new kernel appears", ("problem", "M up to", "h200", "b200"))
    last_of_problem: dict[str, list[int]] = {}
    folder = Path(tempfile.mkdtemp(prefix="preheat-bench-"))
    try:
        for name in ("h200", "b200"):
            toolkit = find_toolkit()
            gpu = build(choice("target", name, Target), cache_dir=folder / "gpu", cuda_home=toolkit.cuda_home)
            discoverer = Discoverer(gpu, toolkit, Children(), folder / "scratch")
            discovery = discoverer.record(problems, folder / name, lambda done, total: None)
            for problem, kernels in zip(problems, discovery.problems, strict=True):
                last_of_problem.setdefault(problem.name, []).append(last_new_m(kernels))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for problem in problems:
        table.add(problem.name, problem.m.largest, *last_of_problem[problem.name])
    print(table.render())


if __name__ == "__main__":
    main()
