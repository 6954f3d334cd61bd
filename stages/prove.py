"""Start the server again with every compiler hidden: what was baked is enough, or the report says what lacks."""

from __future__ import annotations

import time
from dataclasses import dataclass

from pipeline.engine.context import View
from pipeline.engine.errors import VerifyError, shortened
from pipeline.engine.events import Reporter
from pipeline.engine.scratch import scratch_folder
from pipeline.engine.stage import Result, Skipped, Stage
from pipeline.figures import ProofFigures
from pipeline.servers.shared.proof import start_without_compilers
from pipeline.slots import BAKED, EVENTS, INQUIRY, PLACES


@dataclass(kw_only=True)
class Prove(Stage):
    """The same starts and the same requests as `ask`, over the published caches."""

    reads = (PLACES, EVENTS, BAKED)
    may_read = (INQUIRY,)
    reports = (ProofFigures,)

    def run(self, ctx: View) -> Result | Skipped:
        """VerifyError with what a start compiled or tried to compile, or with its last lines when it did not answer."""
        inquiry = ctx.get(INQUIRY)
        if inquiry is None:
            return Skipped("discovery=rules starts no server")
        places = ctx[PLACES]
        progress = Reporter(ctx[EVENTS], "prove").counting("% of the requests served")
        started_s = time.monotonic()
        with scratch_folder(places.scratch, "proof-") as folder:
            figures, faults = start_without_compilers(inquiry, places, folder, progress)
        figures.proof_seconds = round(time.monotonic() - started_s, 3)
        if faults:
            raise VerifyError(shortened(faults), figures=(figures,))
        return Result(
            f"{figures.proof_starts} starts with every compiler hidden: 0 compiled, "
            f"{figures.proof_tokens_answered} tokens answered",
            (figures,),
        )
