"""What follows from a recipe alone: its workload and the layout of its buffers."""

from __future__ import annotations

from pipeline.buffers.sizing import BufferPlan, plan_buffers
from pipeline.engine.errors import ConfigError, NoRulesError
from pipeline.recipe import DeviceKind, DiscoverySource, Recipe
from pipeline.servers.derive import Workload, derive
from pipeline.servers.no_rules import NoRules


def plan_or_no_rules(recipe: Recipe) -> tuple[Workload, BufferPlan] | NoRules:
    """The plan; with discovery=server a recipe that the rules do not know has none, and that is no error."""
    try:
        return make_plan(recipe)
    except NoRulesError as error:
        if recipe.discovery is not DiscoverySource.server:
            raise
        if error.wrong:
            raise ConfigError(*error.wrong) from error
        return NoRules(error.subjects, recipe.parallel.num_ranks)


def make_plan(recipe: Recipe) -> tuple[Workload, BufferPlan]:
    """ConfigError with everything that is wrong with model, layout, server and target together."""
    workload = derive(recipe.model, recipe.parallel, recipe.server, recipe.target)
    on_gpu = recipe.device.kind is not DeviceKind.cpu
    return workload, plan_buffers(workload, recipe.parallel, recipe.adapter, on_gpu=on_gpu)
