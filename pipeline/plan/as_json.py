"""The plan as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.buffers.layout import Region
from pipeline.buffers.sizing import BufferPlan
from pipeline.plan.explain import Size, explain
from pipeline.recipe import Node
from pipeline.servers.derive import Workload
from pipeline.servers.no_rules import NoRules
from pipeline.servers.shared.problems import Problem


def plan_json(workload: Workload, buffers: BufferPlan, stages: Mapping[str, Node]) -> dict[str, Any]:
    """Problems, what is not for DeepGEMM, buffers, and the stages with their needs."""
    return {
        "problems": [_problem(problem) for problem in workload.problems],
        "rules": list(workload.rules.used),
        "not_deepgemm": [{"layer": entry.layer, "reason": entry.reason} for entry in workload.not_deepgemm],
        "buffers": {
            "arena_bytes": buffers.layout.arena_bytes,
            "sum_of_stage_bytes": buffers.layout.sum_of_phase_bytes,
            "slots": [_buffer(region) for region in buffers.layout.regions],
        },
        "stages": _stages(stages),
    }


def no_rules_json(no_rules: NoRules, stages: Mapping[str, Node]) -> dict[str, Any]:
    """The same object where only the server knows: null for what nobody has derived, and the sentence that says so."""
    unknown = dict.fromkeys(("problems", "rules", "not_deepgemm", "buffers"))
    return {**unknown, "stages": _stages(stages), "no_rules": no_rules.sentence}


def _stages(stages: Mapping[str, Node]) -> list[dict[str, Any]]:
    return [{"name": name, "needs": list(node.needs)} for name, node in stages.items()]


def _problem(problem: Problem) -> dict[str, Any]:
    return {
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


def _buffer(region: Region) -> dict[str, Any]:
    return {
        "name": region.spec.name,
        "dtype": region.spec.dtype,
        "shape": list(region.spec.shape),
        "bytes": region.spec.num_bytes,
        "offset": region.offset,
        "phases": sorted(region.spec.phases),
    }


def explanation_json(workload: Workload, size: Size) -> list[dict[str, Any]]:
    """Why a problem of this size is in the plan, or is not."""
    return [
        {"what": line.what, "layers": list(line.layers), "ranks": list(line.ranks), "why": line.why}
        for line in explain(workload, size)
    ]
