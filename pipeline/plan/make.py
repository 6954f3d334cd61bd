"""What follows from a recipe alone: its workload and the layout of its buffers."""

from __future__ import annotations

from pipeline.buffers.sizing import BufferPlan, plan_buffers
from pipeline.recipe import DeviceKind, Recipe
from pipeline.servers.derive import Workload, derive


def make_plan(recipe: Recipe) -> tuple[Workload, BufferPlan]:
    """ConfigError with everything that is wrong with model, layout, server and target together."""
    workload = derive(recipe.model, recipe.parallel, recipe.server, recipe.target)
    on_gpu = recipe.device.kind is not DeviceKind.cpu
    return workload, plan_buffers(workload, recipe.parallel, recipe.adapter, on_gpu=on_gpu)
