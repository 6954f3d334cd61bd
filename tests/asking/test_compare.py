from __future__ import annotations

from pathlib import Path

from pipeline.asking.compare import as_asked, compare
from pipeline.asking.layout import Asked
from pipeline.asking.start import AskedProblem
from pipeline.workload.derive import derive
from pipeline.workload.parallel import Parallel
from tests.workload.recipes import server, target, tiny


def asked(problems: dict[AskedProblem, tuple[int, ...]]) -> Asked:
    return Asked(Path(), ("one",), problems, {}, {}, [], [], 1.0, 1, 1, ())


def test_each_problem_is_named_once_with_whoever_knows_it():
    problems = derive(tiny(), Parallel(name="single"), server(), target()).problems
    named = {as_asked(problem): (0,) for problem in problems}
    assert {line.named_by for line in compare(problems, asked(named))} == {"both"}

    lost = next(iter(named))
    stranger = AskedProblem("GEMM_NT_F8F8BF16", 123, 456, 1)
    lines = compare(problems, asked({**{p: s for p, s in named.items() if p != lost}, stranger: (1, 2)}))
    assert [line.problem for line in lines if line.named_by == "rules"] == [lost]
    (new,) = [line for line in lines if line.named_by == "server"]
    assert new.problem == stranger
    assert new.where == "pipeline stages 1, 2"
    assert new.name == "GEMM_NT_F8F8BF16 123x456"
    assert len(lines) == len(named) + 1
