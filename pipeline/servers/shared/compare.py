"""Compare the rules with the server: problems that both name, and problems that only one of the two names."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pipeline.servers.shared.answer import ServerAnswer
from pipeline.servers.shared.problems import Problem
from pipeline.servers.shared.start import AskedProblem


@dataclass(frozen=True, slots=True)
class Difference:
    """One problem and who names it: rules, server or both."""

    problem: AskedProblem
    named_by: str
    where: str
    """The linears and the rules, or the pipeline ranks that asked for it."""

    @property
    def name(self) -> str:
        """kernel NxK, and groups where there are several."""
        p = self.problem
        return f"{p.kernel} {p.n}x{p.k}" + (f" groups={p.groups}" if p.groups > 1 else "")


def compare(problems: Sequence[Problem], answer: ServerAnswer, announced: Collection[str]) -> list[Difference]:
    """Every problem once, those that both name first.

    `announced`: the kernels whose problems the server names; problems of other kernels are left out.
    """
    of_rules = {as_asked_problem(problem): problem for problem in problems if problem.kernel.value in announced}
    lines: list[Difference] = []
    for key, problem in of_rules.items():
        named_by = "both" if key in answer.problems else "rules"
        lines.append(Difference(key, named_by, f"{', '.join(problem.linears)}: {'; '.join(problem.rules)}"))
    for key, pp_ranks in answer.problems.items():
        if key not in of_rules:
            lines.append(Difference(key, "server", f"pipeline stages {', '.join(map(str, pp_ranks))}"))
    return sorted(lines, key=lambda line: ("both", "rules", "server").index(line.named_by))


def as_asked_problem(problem: Problem) -> AskedProblem:
    """A problem of the rules as the server would name it."""
    return AskedProblem(problem.kernel.value, problem.n, problem.k, problem.groups)
