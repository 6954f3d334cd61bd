from __future__ import annotations

from pipeline.servers.derive import derive
from pipeline.servers.sglang.flags import MoeRunner
from pipeline.servers.shared.compare import as_asked_problem, compare
from pipeline.servers.shared.problems import Problem
from pipeline.servers.shared.start import AskedProblem
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import server, target, tiny
from tests.servers.shared.places import answer


def tiny_problems() -> tuple[Problem, ...]:
    """Of several kernels: DeepGEMM runs the experts too."""
    return derive(tiny(), Parallel(name="single"), server(moe_runner_backend=MoeRunner.deep_gemm), target()).problems


def test_each_problem_is_named_once_with_whoever_knows_it():
    problems = tiny_problems()
    announced = {problem.kernel.value for problem in problems}
    keys = {as_asked_problem(problem): (0,) for problem in problems}
    assert {line.named_by for line in compare(problems, answer(problems=keys), announced)} == {"both"}

    lost = next(iter(keys))
    stranger = AskedProblem("GEMM_NT_F8F8BF16", 123, 456, 1)
    without = {key: pp_ranks for key, pp_ranks in keys.items() if key != lost}
    lines = compare(problems, answer(problems=without | {stranger: (1, 2)}), announced)
    assert [line.problem for line in lines if line.named_by == "rules"] == [lost]
    (new,) = [line for line in lines if line.named_by == "server"]
    assert new.problem == stranger
    assert new.where == "pipeline stages 1, 2"
    assert new.name == "GEMM_NT_F8F8BF16 123x456"
    assert len(lines) == len(keys) + 1
    assert [line.named_by for line in lines] == ["both"] * (len(keys) - 1) + ["rules", "server"]


def test_a_problem_of_the_rules_is_shown_with_its_linears_and_rules():
    problem = tiny_problems()[0]
    (line,) = compare([problem], answer(), {problem.kernel.value})
    assert line.where == f"{', '.join(problem.linears)}: {'; '.join(problem.rules)}"


def test_kernels_whose_problems_the_server_does_not_name_are_left_out():
    problems = tiny_problems()
    kernel = problems[0].kernel.value
    lines = compare(problems, answer(), {kernel})
    assert {line.problem.kernel for line in lines} == {kernel}
    assert len(lines) == sum(problem.kernel.value == kernel for problem in problems) < len(problems)


def test_groups_are_part_of_the_name_where_there_are_several():
    (line,) = compare([], answer(problems={AskedProblem("MASKED", 1, 2, 32): (0,)}), {"MASKED"})
    assert line.name == "MASKED 1x2 groups=32"
