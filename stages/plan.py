"""Derive what this recipe needs: problems, what does not go to DeepGEMM and why, and the layout of the buffers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum

from pipeline.engine.context import View
from pipeline.engine.errors import ConfigError
from pipeline.engine.stage import Result, Stage
from pipeline.figures import PlanFigures
from pipeline.plan.as_json import explanation_json, no_rules_json, plan_json
from pipeline.plan.as_tables import explanation_table, plan_tables, stage_table
from pipeline.plan.explain import FORM, size_of
from pipeline.plan.make import plan_or_no_rules
from pipeline.recipe import Recipe
from pipeline.servers.no_rules import NoRules
from pipeline.slots import BUFFER_PLAN, NO_RULES, RECIPE, WORKLOAD


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
    writes = (WORKLOAD, BUFFER_PLAN, NO_RULES)
    reports = (PlanFigures,)

    def run(self, ctx: View) -> Result:
        """Raise ConfigError with everything that is wrong with model, layout, server and target together.

        Without rules NO_RULES is written instead of the two other slots.
        """
        plan = plan_or_no_rules(ctx[RECIPE])
        if isinstance(plan, NoRules):
            ctx[NO_RULES] = plan
            return Result(plan.sentence, (PlanFigures(ranks=plan.num_ranks, no_rules=plan.sentence),))
        workload, buffers = plan
        ctx[WORKLOAD] = workload
        ctx[BUFFER_PLAN] = buffers
        figures = PlanFigures(
            problems=len(workload.problems),
            ranks=workload.num_ranks,
            not_deepgemm=len(workload.not_deepgemm),
            rules=list(workload.rules.used),
        )
        return Result(f"{figures.problems} problems over {figures.ranks} ranks", (figures,))

    def config_errors(self, recipe: Recipe) -> list[str]:
        """A plan.explain that is no size, and what is wrong with model, layout, server and target."""
        errors: list[str] = []
        if self.explain is not None and size_of(self.explain) is None:
            errors.append(f"plan.explain must be {FORM}, got {self.explain!r}")
        try:
            plan_or_no_rules(recipe)
        except ConfigError as error:
            errors += error.lines
        return errors

    def preview(self, recipe: Recipe) -> str:
        """The plan, or the answer to `explain`; without rules that there are none, and which stages would run."""
        plan = plan_or_no_rules(recipe)
        stages = recipe.pipeline.stages
        if isinstance(plan, NoRules):
            if self.format is PlanFormat.json:
                return json.dumps(no_rules_json(plan, stages))
            return f"{plan.sentence}\n\n{stage_table(stages).render()}"
        workload, buffers = plan
        size = None if self.explain is None else size_of(self.explain)
        if self.format is PlanFormat.json:
            explained = {} if size is None else {"explain": explanation_json(workload, size)}
            return json.dumps(plan_json(workload, buffers, stages) | explained)
        tables = plan_tables(workload, buffers, stages) if size is None else [explanation_table(workload, size)]
        return "\n".join(table.render() for table in tables)
