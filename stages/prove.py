"""Start the server again with every compiler hidden: what was baked is enough, or the report says what lacks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.asking.caches import PROVIDER, entries
from pipeline.asking.hidden import hide_compilers
from pipeline.asking.layout import Progress, ask
from pipeline.deepgemm.discovery import link_cache
from pipeline.engine.context import View
from pipeline.engine.errors import VerifyError
from pipeline.engine.events import Reporter
from pipeline.engine.scratch import scratch_folder
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.slots import ASKED, BAKED, EVENTS, RECIPE, AskedServer, Baked

FAULTS_SHOWN = 10


@dataclass(kw_only=True)
class Prove(Stage):
    """The same starts and the same requests as `ask`, over the published caches."""

    reads = (RECIPE, EVENTS, BAKED)
    may_read = (ASKED,)
    writes = ()
    resource = Resource.CORES
    section = "server"
    figures = ("proof_starts", "proof_tokens_answered", "proof_seconds", "proof_missing", "proof_compiler_calls")

    def run(self, ctx: View) -> Result | Skipped:
        """VerifyError with what a start compiled or tried to compile, or with its last words when it did not answer."""
        recipe = ctx[RECIPE]
        server = ctx.get(ASKED)
        if not recipe.discovery.asks_server or server is None:
            return Skipped("discovery=rules starts no server")
        root = Path(recipe.store.dir).absolute()
        output = Path(recipe.output.dir).absolute()
        progress = Reporter(ctx[EVENTS], "prove")
        started_s = time.monotonic()
        with scratch_folder(root / "scratch", "proof-") as folder:
            places = Progress(root / "scratch", lambda a, b: progress("% of the requests served", a, b))
            figures, faults = without_compilers(server, ctx[BAKED], output, folder, places)
        figures["proof_seconds"] = round(time.monotonic() - started_s, 3)
        if faults:
            raise VerifyError("\n".join(faults[:FAULTS_SHOWN]), figures=figures)
        return Result(
            f"{figures['proof_starts']} starts with every compiler hidden: 0 compiled, "
            f"{figures['proof_tokens_answered']} tokens answered",
            figures,
        )


def without_compilers(
    server: AskedServer, baked: Baked, output: Path, folder: Path, places: Progress
) -> tuple[dict[str, Any], list[str]]:
    """(figures, faults) of starting every rank where no compiler can be called."""
    starter = server.starter
    hidden = hide_compilers(folder / "hidden", starter.server, starter.toolkit)
    deep_gemm = link_cache(baked.warm_cache, folder)
    before = entries(starter.cache_dir)
    variables = {
        **server.variables,
        **hidden.environment(),
        "SGLANG_DG_CACHE_DIR": str(deep_gemm),
        "PYTHONPATH": str(output / PROVIDER),
    }
    again = ask(starter, server.variants, variables, places)
    missing = {name: sorted(set(there) - before[name]) for name, there in again.there.items()}
    missing["deep_gemm"] = sorted(entry.name for entry in (deep_gemm / "cache").iterdir() if not entry.is_symlink())
    calls = hidden.calls
    faults = [f"{name}: {entry} was compiled again" for name, new in missing.items() for entry in new]
    faults += [f"a hidden compiler was called: {call}" for call in dict.fromkeys(calls)]
    faults += list(again.faults)
    figures = {
        "proof_starts": len(again.starts),
        "proof_tokens_answered": again.tokens_answered,
        "proof_missing": missing,
        "proof_compiler_calls": calls,
    }
    return figures, faults
