"""Hold the rules against the server: problems and kernels that only one of the two names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.asking.layout import Asked
from pipeline.asking.start import AskedProblem
from pipeline.workload.problems import Problem

# SGLang announces these before it warms them up; kernels of other kinds are compared by their keys alone.
ANNOUNCED = {
    "GEMM_NT_F8F8BF16",
    "GEMM_NT_BF16",
    "GROUPED_GEMM_NT_F8F8BF16_MASKED",
    "GROUPED_GEMM_NT_F8F8BF16_CONTIG",
    "GROUPED_GEMM_NT_BF16_MASKED",
    "GROUPED_GEMM_NT_BF16_CONTIG",
    "GROUPED_GEMM_NT_F8F4BF16_MASKED",
    "GROUPED_GEMM_NT_F8F4BF16_CONTIG",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """One problem and who names it: rules, server or both."""

    problem: AskedProblem
    named_by: str
    where: str
    """Linears and rule, or pipeline stages."""

    @property
    def name(self) -> str:
        """kernel NxK, and groups where there are several."""
        p = self.problem
        return f"{p.kernel} {p.n}x{p.k}" + (f" groups={p.groups}" if p.groups > 1 else "")


def compare(problems: Sequence[Problem], asked: Asked) -> list[Difference]:
    """Every problem once, those that both name first."""
    by_rule = {as_asked(problem): problem for problem in problems if problem.kernel.value in ANNOUNCED}
    lines: list[Difference] = []
    for named, problem in by_rule.items():
        who = "both" if named in asked.problems else "rules"
        lines.append(Difference(named, who, f"{', '.join(problem.linears)}: {'; '.join(problem.rules)}"))
    for named, stages in asked.problems.items():
        if named not in by_rule:
            lines.append(Difference(named, "server", f"pipeline stages {', '.join(map(str, stages))}"))
    return sorted(lines, key=lambda line: ("both", "rules", "server").index(line.named_by))


def as_asked(problem: Problem) -> AskedProblem:
    """A rule's problem by the server's names."""
    return AskedProblem(problem.kernel.value, problem.n, problem.k, problem.groups)
