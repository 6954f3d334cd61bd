"""How a bake is reported: figures, one line, and what makes it a failure or incomplete."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.deepgemm.bake import Bake
from pipeline.deepgemm.farm import Farm
from pipeline.deepgemm.memo import RememberedDiscovery
from pipeline.engine.errors import IncompleteError, StageError
from pipeline.figures import SweepFigures
from pipeline.servers.shared.problems import Problem

ERRORS_SHOWN = 3


def sweep_figures(bake: Bake, problems: Sequence[Problem], farm: Farm) -> SweepFigures:
    """What was discovered, compiled and published; a figure is None where its step did not run."""
    compiled = bake.compiled
    keys = {source.key for source in bake.sources}
    figures = SweepFigures(
        keys=len(keys),
        compiled=compiled.num_compiled,
        reused=compiled.num_reused,
        failed=len(compiled.failed),
        missing=len(keys - set(compiled.cubins)),
        errors=compiled.failed or None,
        published=len(bake.published.added),
        kept=len(bake.published.kept),
        replaced=bake.published.replaced,
        farm_wall_s=round(compiled.wall_s, 3),
        farm_cpu_s=round(compiled.cpu_s, 3),
        farm_jobs=farm.num_workers,
        nvcc=farm.toolkit.describe(),
    )
    if bake.discovery is not None:
        figures.problems = len(problems)
        _add_discovery(figures, bake.discovery)
    if bake.rules_sources is not None and bake.server_sources is not None:
        rules_keys = {source.key for source in bake.rules_sources}
        server_keys = {source.key for source in bake.server_sources}
        figures.rules_only_keys = sorted(rules_keys - server_keys)
        figures.server_only_keys = sorted(server_keys - rules_keys)
    return figures


def _add_discovery(figures: SweepFigures, discovery: RememberedDiscovery) -> None:
    figures.m_values = discovery.discovery.num_launched
    figures.not_in_library = list(discovery.discovery.unavailable)
    figures.discovery_s = round(discovery.discovery.seconds, 3) if discovery.is_new else None
    figures.discovery_reused = not discovery.is_new
    figures.discovery_peak_bytes = discovery.discovery.peak_bytes


def require_complete(
    bake: Bake, problems: Sequence[Problem], server_faults: Sequence[str], figures: SweepFigures
) -> None:
    """StageError for kernels that the compiler rejected, IncompleteError for what could not be listed."""
    failed = bake.compiled.failed
    if failed:
        first_errors = "\n".join(f"{key}: {message}" for key, message in list(failed.items())[:ERRORS_SHOWN])
        raise StageError(
            f"nvcc rejected {len(failed)} of {figures.keys} kernels; the others are cached\n{first_errors}",
            figures=(figures,),
        )
    if bake.discovery is not None and bake.discovery.discovery.unavailable:
        discovery = bake.discovery.discovery
        num_unavailable = sum(problem.unavailable is not None for problem in discovery.problems)
        raise IncompleteError(
            f"{num_unavailable} of {len(problems)} problems cannot be launched: {'; '.join(discovery.unavailable)}; "
            "the others are cached. Install the deep_gemm that the server ships (requirements.txt has SGLang 0.5.23's)",
            figures=(figures,),
        )
    if server_faults:
        raise IncompleteError(
            f"{figures.keys} kernels are cached, but the server's list is incomplete: " + "\n".join(server_faults),
            figures=(figures,),
        )


def sweep_summary(bake: Bake, figures: SweepFigures, num_server_problems: int | None) -> str:
    """One line; `num_server_problems`: problems that the server asked for, None when it was not asked."""
    by_rules = f"{figures.m_values} M of {figures.problems} problems" if bake.discovery is not None else ""
    by_server = "" if num_server_problems is None else f"{num_server_problems} problems that the server asked for"
    origins = " and ".join(filter(None, [by_rules, by_server]))
    compiled = f"{figures.compiled} compiled in {bake.compiled.wall_s:.1f} s, {figures.reused} reused"
    return f"{origins} need {figures.keys} kernels: {compiled}"
