"""What the tests of vLLM's rules derive from, and how they look into it."""

from __future__ import annotations

from typing import Any

from pipeline.servers.derive import Workload, derive
from pipeline.servers.shared.problems import Problem
from pipeline.servers.vllm.flags import VllmFlags
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import shipped, target

TP8 = Parallel(tp=8)
EP8 = Parallel(tp=8, attn_dp=8, ep=8)


def vllm(
    model: str = "deepseek", parallel: Parallel = TP8, version: str = "0.33.0", *, gpu: str = "h200", **flags: Any
) -> Workload:
    return derive(shipped(model), parallel, VllmFlags(version=version, **flags), target(gpu))


def problem_of(workload: Workload, linear: str) -> Problem:
    (problem,) = [problem for problem in workload.problems if linear in problem.linears and "psum" not in problem.name]
    return problem


def has(workload: Workload, linear: str) -> bool:
    return any(linear in problem.linears for problem in workload.problems)
