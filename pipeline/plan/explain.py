"""Why a plan holds a problem, or does not: by which layers, ranks and rules."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pipeline.servers.derive import Workload
from pipeline.workload.linears import Linear
from pipeline.workload.scheme import Scheme

FORM = "N,K or N,K,groups, for example 2112,7168 or 4096,7168,32"


@dataclass(frozen=True, slots=True)
class Size:
    """What is asked about; `groups` None means any."""

    n: int
    k: int
    groups: int | None

    def is_of(self, n: int, k: int, groups: int) -> bool:
        """Whether a problem or a linear has this size."""
        return (n, k) == (self.n, self.k) and self.groups in (None, groups)

    def __str__(self) -> str:
        groups = "" if self.groups is None else f" g{self.groups}"
        return f"{self.n}x{self.k}{groups}"


@dataclass(frozen=True, slots=True)
class Line:
    """One answer: a kernel that is launched, a linear that goes elsewhere, or what comes near."""

    what: str
    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    why: str


def size_of(text: str) -> Size | None:
    """The size that a user wrote, None when it is none."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) not in (2, 3) or not all(part.isdigit() for part in parts):
        return None
    numbers = [int(part) for part in parts]
    return Size(numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None)


def explain(workload: Workload, size: Size) -> list[Line]:
    """Every kernel of this size; else every linear of it with the reason; else what shares one side with it."""
    launched = [
        Line(f"{problem.name}: {', '.join(problem.linears)}", problem.layers, problem.ranks, "; ".join(problem.rules))
        for problem in workload.problems
        if size.is_of(problem.n, problem.k, problem.groups)
    ]
    absent = [
        _line(linear, ranks, workload.rules.reason(linear) or "on DeepGEMM")
        for linear, ranks in _linears(workload)
        if size.is_of(linear.n, linear.k, linear.groups) and workload.rules.reason(linear) is not None
    ]
    if launched or absent:
        return launched + absent
    near = [
        _line(
            linear,
            ranks,
            f"no linear of this model and layout is {size}; this one has the same {_shared(linear, size)}",
        )
        for linear, ranks in _linears(workload)
        if linear.n == size.n or linear.k == size.k
    ]
    return near or [Line(str(size), (), (), "no linear of this model and layout has this N or this K")]


def _linears(workload: Workload) -> list[tuple[Linear, tuple[int, ...]]]:
    """Each linear once, with the layers and ranks of every place of the pipeline that holds it."""
    merged: dict[tuple[str, int, int, int, Scheme], tuple[Linear, tuple[int, ...]]] = {}
    for place in workload.pipeline_ranks:
        for linear in place.linears:
            key = (linear.name, linear.n, linear.k, linear.groups, linear.scheme)
            before, ranks = merged.get(key, (linear, ()))
            layers = tuple(sorted({*before.layers, *linear.layers}))
            merged[key] = (replace(before, layers=layers), ranks + place.ranks)
    return list(merged.values())


def _line(linear: Linear, ranks: tuple[int, ...], why: str) -> Line:
    groups = f" g{linear.groups}" if linear.groups > 1 else ""
    return Line(f"{linear.name} {linear.n}x{linear.k}{groups}", linear.layers, ranks, why)


def _shared(linear: Linear, size: Size) -> str:
    return "N" if linear.n == size.n else "K"
