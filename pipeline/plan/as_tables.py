"""The plan for people."""

from __future__ import annotations

from collections.abc import Mapping

from pipeline.arithmetic import spans
from pipeline.buffers.sizing import BufferPlan
from pipeline.engine.tables import Table
from pipeline.plan.explain import Size, explain
from pipeline.recipe import Node
from pipeline.servers.derive import Workload
from pipeline.servers.shared.problems import Problem


def plan_tables(workload: Workload, buffers: BufferPlan, stages: Mapping[str, Node]) -> list[Table]:
    """What is launched, what is not and why, what the arena holds, and which stages would run."""
    return [
        _problem_table(workload),
        _not_deepgemm_table(workload),
        _buffer_table(buffers),
        stage_table(stages),
    ]


def explanation_table(workload: Workload, size: Size) -> Table:
    """Why a problem of this size is in the plan, or is not."""
    table = Table(f"{size}: why", ("what", "layers", "ranks", "why"))
    for line in explain(workload, size):
        table.add(line.what, spans(line.layers), spans(line.ranks), line.why)
    return table


def _problem_table(workload: Workload) -> Table:
    table = Table("Problems for DeepGEMM", ("kernel", "N", "K", "groups", "M", "layers", "ranks", "linears"))
    for problem in workload.problems:
        table.add(*_problem_row(problem, workload.num_ranks))
    return table


def _problem_row(problem: Problem, num_ranks: int) -> tuple[object, ...]:
    options = "".join(f" {name}={value}" for name, value in problem.options)
    return (
        f"{problem.kernel.name.lower()}{options}",
        problem.n,
        problem.k,
        problem.groups,
        f"{problem.m.smallest}..{problem.m.largest} ({len(problem.m)})",
        spans(problem.layers),
        "all" if len(problem.ranks) == num_ranks else spans(problem.ranks),
        ", ".join(problem.linears),
    )


def _not_deepgemm_table(workload: Workload) -> Table:
    table = Table("Not for DeepGEMM", ("layer", "reason"))
    for entry in workload.not_deepgemm:
        table.add(entry.layer, entry.reason)
    return table


def _buffer_table(buffers: BufferPlan) -> Table:
    layout = buffers.layout
    title = (
        f"Buffers: one arena of {layout.arena_bytes / 2**20:.1f} MiB "
        f"({layout.sum_of_phase_bytes / 2**20:.1f} MiB if every phase allocated its own)"
    )
    table = Table(title, ("phase", "buffers", "MiB"))
    for phase in layout.phases:
        live = [region for region in layout.regions if phase in region.spec.phases]
        table.add(phase, len(live), f"{layout.phase_bytes(phase) / 2**20:.1f}")
    return table


def stage_table(stages: Mapping[str, Node]) -> Table:
    """Which stages would run, and after which."""
    table = Table("Stages", ("stage", "needs"))
    for name, node in stages.items():
        table.add(name, ", ".join(node.needs))
    return table
