"""Take a cache that an earlier run published, in a pipeline that bakes nothing."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.engine.context import View
from pipeline.engine.errors import ConfigError
from pipeline.engine.stage import Result, Skipped, Stage
from pipeline.figures import SweepFigures
from pipeline.slots import BAKED, PLACES, RECIPE, WORKLOAD, Baked


@dataclass(kw_only=True)
class Published(Stage):
    """Stands where `sweep` stands in conf/pipeline/default.yaml."""

    reads = (RECIPE, PLACES, WORKLOAD)
    writes = (BAKED,)
    reports = (SweepFigures,)

    def run(self, ctx: View) -> Result | Skipped:
        """ConfigError when the output holds no cache."""
        discovery = ctx[RECIPE].discovery
        warm_cache = ctx[PLACES].warm_cache
        problems = ctx[WORKLOAD].problems if discovery.uses_rules else ()
        figures = SweepFigures(problems=len(problems))
        ctx[BAKED] = Baked(sources=[], problems=problems)
        if not problems and not discovery.asks_server:
            return Skipped("no problem of this recipe goes to DeepGEMM; see the plan for the reasons", (figures,))
        if not (warm_cache / "cache").is_dir():
            raise ConfigError(f"output.dir: {warm_cache} holds no cache to verify; bake it first with mode=run")
        num_entries = sum(1 for _ in (warm_cache / "cache").iterdir())
        return Result(f"{num_entries} kernels in {warm_cache}", (figures,))
