from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest

from pipeline.buffers.sizing import BufferPlan
from pipeline.engine.errors import ConfigError
from pipeline.plan.as_json import plan_json
from pipeline.plan.make import make_plan
from pipeline.recipe import Device, DeviceKind
from pipeline.servers.registry import SERVERS
from pipeline.workload.parallel import Parallel
from tests.plan.plans import NEEDS
from tests.servers.recipes import ROOT, deepseek, layout, shipped
from tests.stages.runs import recipe_of

WITHOUT_TORCH = """
import sys
from pipeline.plan.as_json import explanation_json, plan_json
from pipeline.plan.as_tables import explanation_table, plan_tables
from pipeline.plan.explain import size_of
from pipeline.plan.make import make_plan
from pipeline.recipe import Recipe
from stages.plan import Plan
from tests.servers.recipes import deepseek, layout, server, target
recipe = Recipe(model=deepseek(), parallel=layout("pp4"), server=server(), target=target())
plan = make_plan(recipe)
plan_json(*plan, {}), [table.render() for table in plan_tables(*plan, {})]
explanation_json(plan[0], size_of("4608,7168")), explanation_table(plan[0], size_of("4608,7168")).render()
Plan().preview(recipe), Plan().config_errors(recipe)
print([name for name in ("torch", "deep_gemm", "flashinfer") if name in sys.modules])
"""


def names(group: str) -> list[str]:
    """The shipped files of a group."""
    return [path.stem for path in sorted((ROOT / "conf" / group).glob("*.yaml"))]


def planned(model: str, parallel: str, server: str) -> dict[str, Any] | None:
    """The plan, None when the server would refuse the layout."""
    try:
        return plan_json(*make_plan(recipe_of(shipped(model), layout(parallel), name=server)), NEEDS)
    except ConfigError:
        return None


@pytest.mark.parametrize("model", names("model"))
def test_every_shipped_pair_is_planned_or_refused_at_once(model: str) -> None:
    """Starting python and composing the recipe take most of the 3 seconds that a plan may take."""
    started_s = time.monotonic()
    plans = list[dict[str, Any]]()
    for server in SERVERS:
        plans += [plan for parallel in names("parallel") if (plan := planned(model, parallel, server)) is not None]
    assert time.monotonic() - started_s < len(names("parallel"))
    assert len(plans) >= len(names("parallel")) / 2
    for plan in plans:
        assert plan["not_deepgemm"]
        assert plan["buffers"]["arena_bytes"] > 0
        assert all(problem["m_count"] > 0 for problem in plan["problems"])


def test_a_plan_imports_no_torch() -> None:
    command = [sys.executable, "-c", WITHOUT_TORCH]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (child.stdout.strip(), child.stderr) == ("[]", "")


def test_what_is_wrong_in_several_places_is_told_together() -> None:
    with pytest.raises(ConfigError) as caught:
        make_plan(recipe_of(deepseek(), Parallel(tp=8, attn_dp=3), tokens_per_request=0))
    assert sum("server.tokens_per_request" in line for line in caught.value.lines) == 1
    assert len(caught.value.lines) == 2


def test_prefill_is_a_whole_chunk_on_the_gpu_and_a_short_one_on_the_cpu() -> None:
    recipe = recipe_of(chunked_prefill_size=8192)
    workload, on_cpu = make_plan(recipe)
    recipe.device = Device(kind=DeviceKind.cuda)
    _, on_gpu = make_plan(recipe)
    assert extend_tokens(on_gpu) == {workload.rules.chunk} == {8192}
    assert max(extend_tokens(on_cpu)) < 8192


def extend_tokens(buffers: BufferPlan) -> set[int]:
    """Tokens of every prefill layer."""
    return {layer.tokens for layer in buffers.layers if layer.is_extend}
