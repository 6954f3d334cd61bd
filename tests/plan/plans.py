"""What the tests of a plan's forms start from: DeepSeek-V3 over four pipeline ranks."""

from __future__ import annotations

from typing import Any

from pipeline.buffers.sizing import BufferPlan
from pipeline.plan.explain import Size, size_of
from pipeline.plan.make import make_plan
from pipeline.recipe import Node
from pipeline.servers.derive import Workload
from tests.servers.recipes import deepseek, layout
from tests.stages.runs import recipe_of

NEEDS = {"plan": Node(), "allocate": Node(needs=["plan"])}


def plan_of(**flags: Any) -> tuple[Workload, BufferPlan]:
    """Its workload and buffers under these server flags."""
    return make_plan(recipe_of(deepseek(), layout("pp4"), **flags))


def size(text: str) -> Size:
    """A size that is known to be one."""
    parsed = size_of(text)
    assert parsed is not None, text
    return parsed
