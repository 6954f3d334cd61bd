"""env.sh: what to export before the recipe's server starts."""

from __future__ import annotations

from pathlib import Path

from pipeline.places import Places
from pipeline.recipe import Recipe
from pipeline.servers.registry import SERVERS
from pipeline.servers.shared.caches import INSTEAD_OF_CUTE, Caches
from pipeline.servers.shared.flashinfer_provider import PROVIDER

ROOT = "$PREHEAT_WARM_CACHE"
TACTICS_VARIABLE = "FLASHINFER_AUTOTUNE_CACHE_DIR"


def env_script(recipe: Recipe, places: Places) -> str:
    """Names every cache that is in the output; paths follow the script, so the folder may be moved."""
    server = SERVERS[recipe.server.name]
    switch, off = server.sweep_switch
    lines = [
        f"# Warm cache for {recipe.model.name} ({recipe.parallel.name}) on {recipe.target.product}, made for "
        f"{recipe.server.name} {recipe.server.version}.",
        "# Source it from bash; the folder may be moved or copied into an image.",
        'PREHEAT_WARM_CACHE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"',
        _export(server.deep_gemm_variable, f"{ROOT}/{places.warm_cache.name}"),
        "# The kernels are there already: do not run the server's own sweep, load each at its first use.",
        f"export {switch}={off}",
    ]
    if server.askable is not None and (places.output / server.askable.caches.folder).is_dir():
        lines += _server_caches(server.askable.caches)
    if (places.output / PROVIDER).is_dir():
        lines.append("# FlashInfer's modules load from here without ninja and nvcc.")
        lines.append(_export("PYTHONPATH", f"{ROOT}/{PROVIDER}${{PYTHONPATH:+:$PYTHONPATH}}"))
    if (places.tactics / "v2").is_dir():
        lines.append(_export(TACTICS_VARIABLE, f"{ROOT}/{places.tactics.name}"))
    return "\n".join(lines) + "\n"


def _server_caches(caches: Caches) -> list[str]:
    variables = caches.environment(Path(ROOT) / caches.folder)
    return [
        *(_export(name, value) for name, value in variables.items()),
        "# CuTe-DSL keeps no compiled kernel on disk; FlashInfer's CUDA norms are in the cache.",
        *(f"export {name}={value}" for name, value in INSTEAD_OF_CUTE.items()),
    ]


def _export(name: str, value: str) -> str:
    """One line; bash expands the variables in the value."""
    return f'export {name}="{value}"'
