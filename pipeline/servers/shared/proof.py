"""Start the server again with every compiler hidden, and list what the published caches lack."""

from __future__ import annotations

from pathlib import Path

from pipeline.deepgemm.discovery import link_cache
from pipeline.engine.jobs import OnProgress
from pipeline.figures import ProofFigures
from pipeline.places import Places
from pipeline.servers.shared.flashinfer_provider import PROVIDER
from pipeline.servers.shared.hidden_compilers import hide_compilers
from pipeline.servers.shared.inquiry import Inquiry


def start_without_compilers(
    inquiry: Inquiry, places: Places, folder: Path, on_progress: OnProgress
) -> tuple[ProofFigures, list[str]]:
    """(figures, faults) of the same starts and requests as before, over the published caches.

    `folder` is a scratch folder. DeepGEMM's published cache is linked into it, so nothing is written to that cache.
    """
    starter = inquiry.starter
    caches = starter.askable.caches
    hidden = hide_compilers(folder / "hidden", starter.server, starter.toolkit)
    deep_gemm = link_cache(places.warm_cache, folder)
    before = caches.entries(starter.cache_dir)
    variables = {**hidden.environment(), "PYTHONPATH": str(places.output / PROVIDER)}
    answer = inquiry.ask(deep_gemm, on_progress, variables)
    missing = {name: sorted(set(entries) - before[name]) for name, entries in answer.entries.items()}
    missing["deep_gemm"] = sorted(entry.name for entry in (deep_gemm / "cache").iterdir() if not entry.is_symlink())
    calls = hidden.calls
    faults = [f"{name}: {entry} was compiled again" for name, entries in missing.items() for entry in entries]
    faults += [f"a hidden compiler was called: {call}" for call in dict.fromkeys(calls)]
    faults += list(answer.faults)
    figures = ProofFigures(
        proof_starts=len(answer.starts),
        proof_tokens_answered=answer.tokens_answered,
        proof_missing=missing,
        proof_compiler_calls=calls,
    )
    return figures, faults
