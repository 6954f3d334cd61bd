"""Derive what this recipe needs: problems, what does not go to DeepGEMM and why, and the layout of the buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pipeline.buffers.sizing import BufferPlan, plan_buffers
from pipeline.engine.context import View
from pipeline.engine.stage import Result, Stage
from pipeline.engine.tables import Table
from pipeline.recipe import DeviceKind, Recipe
from pipeline.slots import BUFFER_PLAN, RECIPE, WORKLOAD
from pipeline.workload.derive import Workload, derive
from pipeline.workload.explain import FORM, explain, size_of


class PlanFormat(Enum):
    """How mode=plan prints."""

    table = "table"
    json = "json"


@dataclass(kw_only=True)
class Plan(Stage):
    """Pure computation: needs no torch and touches nothing."""

    format: PlanFormat = PlanFormat.table
    """table, or json for one JSON object on standard output."""
    explain: str | None = None
    """N,K or N,K,groups: mode=plan says why this problem is there or is not, instead of printing the plan."""

    reads = (RECIPE,)
    writes = (WORKLOAD, BUFFER_PLAN)
    section = "plan"
    figures = ("problems", "ranks", "not_deepgemm", "rules")

    def run(self, ctx: View) -> Result:
        """Raise ConfigError with everything that is wrong with model, layout, server and target together."""
        workload, buffers = make_plan(ctx[RECIPE])
        ctx[WORKLOAD] = workload
        ctx[BUFFER_PLAN] = buffers
        problems = len(workload.problems)
        ranks = workload.num_ranks
        figures: dict[str, Any] = {"problems": problems, "ranks": ranks, "not_deepgemm": len(workload.not_deepgemm)}
        figures["rules"] = list(workload.rules.used)
        return Result(f"{problems} problems over {ranks} ranks", figures)

    def problems(self) -> list[str]:
        """A size that is none."""
        if self.explain is None or size_of(self.explain) is not None:
            return []
        return [f"plan.explain must be {FORM}, got {self.explain!r}"]


def make_plan(recipe: Recipe) -> tuple[Workload, BufferPlan]:
    """What follows from the recipe alone."""
    workload = derive(recipe.model, recipe.parallel, recipe.server, recipe.target)
    buffers = plan_buffers(
        workload,
        recipe.parallel,
        recipe.server,
        recipe.adapter,
        on_gpu=recipe.device.kind is not DeviceKind.cpu,
    )
    return workload, buffers


def plan_json(workload: Workload, buffers: BufferPlan, needs: Mapping[str, list[str]]) -> dict[str, Any]:
    """The plan as one JSON object."""
    return {
        "problems": [
            {
                "kernel": problem.kernel.value,
                "n": problem.n,
                "k": problem.k,
                "groups": problem.groups,
                "m_count": len(problem.m),
                "m_min": problem.m.smallest,
                "m_max": problem.m.largest,
                "linears": list(problem.linears),
                "layers": list(problem.layers),
                "ranks": list(problem.ranks),
                "rule": "; ".join(problem.rules),
                "options": dict(problem.options),
                "server_warmup_calls": problem.warmup_calls,
            }
            for problem in workload.problems
        ],
        "rules": list(workload.rules.used),
        "not_deepgemm": [{"layer": entry.layer, "reason": entry.reason} for entry in workload.not_deepgemm],
        "buffers": {
            "arena_bytes": buffers.layout.arena_bytes,
            "sum_of_stage_bytes": buffers.layout.sum_of_phase_bytes,
            "slots": [
                {
                    "name": region.spec.name,
                    "dtype": region.spec.dtype,
                    "shape": list(region.spec.shape),
                    "bytes": region.spec.num_bytes,
                    "offset": region.offset,
                    "phases": sorted(region.spec.phases),
                }
                for region in buffers.layout.regions
            ],
        },
        "stages": [{"name": name, "needs": list(wanted)} for name, wanted in needs.items()],
    }


def explanation(workload: Workload, asked: str) -> list[dict[str, Any]]:
    """Why a problem of this size is in the plan, or is not."""
    size = size_of(asked)
    assert size is not None, "the stage has checked it"
    return [
        {"what": line.what, "layers": list(line.layers), "ranks": list(line.ranks), "why": line.why}
        for line in explain(workload, size)
    ]


def explanation_table(workload: Workload, asked: str) -> Table:
    """The same for people."""
    table = Table(f"{asked}: why", ("what", "layers", "ranks", "why"))
    for line in explanation(workload, asked):
        table.add(line["what"], spans(line["layers"]), spans(line["ranks"]), line["why"])
    return table


def plan_tables(workload: Workload, buffers: BufferPlan) -> list[Table]:
    """The plan for people: what is launched, what is not and why, and what the arena holds."""
    num_ranks = workload.num_ranks
    problems = Table("Problems for DeepGEMM", ("kernel", "N", "K", "groups", "M", "layers", "ranks", "linears"))
    for problem in workload.problems:
        ranks = "all" if len(problem.ranks) == num_ranks else spans(problem.ranks)
        m = f"{problem.m.smallest}..{problem.m.largest} ({len(problem.m)})"
        options = "".join(f" {name}={value}" for name, value in problem.options)
        row = (
            f"{problem.kernel.name.lower()}{options}",
            problem.n,
            problem.k,
            problem.groups,
            m,
            spans(problem.layers),
            ranks,
        )
        problems.add(*row, ", ".join(problem.linears))
    absent = Table("Not for DeepGEMM", ("layer", "reason"))
    for entry in workload.not_deepgemm:
        absent.add(entry.layer, entry.reason)
    layout = buffers.layout
    arena = Table(
        f"Buffers: one arena of {layout.arena_bytes / 2**20:.1f} MiB "
        f"({layout.sum_of_phase_bytes / 2**20:.1f} MiB if every phase allocated its own)",
        ("phase", "buffers", "MiB"),
    )
    for phase in layout.phases:
        live = [region for region in layout.regions if phase in region.spec.phases]
        arena.add(phase, len(live), f"{layout.phase_bytes(phase) / 2**20:.1f}")
    return [problems, absent, arena]


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges: 0-2, 5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
