"""Start the installed server on the virtual GPU, rank by rank, and learn what it asks its compilers for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.engine.context import View
from pipeline.engine.errors import WrongRuleError, shortened
from pipeline.engine.events import Reporter
from pipeline.engine.host import require_writable
from pipeline.engine.jobs import OnProgress
from pipeline.engine.stage import Result, Skipped, Stage
from pipeline.figures import AskFigures
from pipeline.recipe import DiscoverySource
from pipeline.servers.shared.answer import ServerAnswer, ask_and_keep, recall
from pipeline.servers.shared.answer_report import ask_figures, ask_summary, difference_tables, wrong_rules
from pipeline.servers.shared.caches import is_covered
from pipeline.servers.shared.compare import Difference, compare
from pipeline.servers.shared.digest import answer_digest
from pipeline.servers.shared.flashinfer_provider import write_flashinfer_provider
from pipeline.servers.shared.inquiry import Inquiry
from pipeline.slots import ANSWER, EVENTS, INQUIRY, NO_RULES, PLACES, RECIPE, WORKLOAD

NEEDED_BYTES = 1 << 30


@dataclass(kw_only=True)
class Ask(Stage):
    """Every cache but DeepGEMM's is filled for real on the way; DeepGEMM's kernels go to sweep."""

    accept_differences: bool = False
    """discovery=both: end with exit code 0 although the server names a problem that the rules do not."""

    reads = (RECIPE, PLACES, EVENTS, WORKLOAD)
    may_read = (INQUIRY, NO_RULES)
    writes = (ANSWER,)
    reports = (AskFigures,)
    leaves_output = True

    def run(self, ctx: View) -> Result | Skipped:
        """ConfigError with its own message for arguments that the server refuses.

        When a start ended early, what was asked until then is baked all the same, and `sweep` ends with exit code 6. A
        problem that only the server names ends the run with exit code 6 too, after every other stage has done its work.
        """
        inquiry = ctx.get(INQUIRY)
        if inquiry is None:
            return Skipped("discovery=rules starts no server")
        starter = inquiry.starter
        places = ctx[PLACES]
        require_writable(starter.cache_dir, key="output.dir", needed_bytes=NEEDED_BYTES)
        progress = Reporter(ctx[EVENTS], "ask").counting("% of the requests served")
        answer = answer_of(inquiry, places.store, progress)
        ctx[ANSWER] = answer
        write_flashinfer_provider(
            places.output,
            starter.askable.caches.folder,
            flashinfer_version=starter.server.versions["flashinfer-python"],
            sm=f"sm{starter.gpu.target.sm}a",
        )
        differences = None
        if ctx.get(NO_RULES) is None:
            differences = compare(ctx[WORKLOAD].problems, answer, starter.askable.announced_kernels)
        figures = ask_figures(answer, differences, version=starter.server.version, arguments=shown_arguments(inquiry))
        tables = difference_tables(differences or ())
        return Result(ask_summary(answer, differences), (figures,), tables, self._wrong_rule(ctx, differences))

    def _wrong_rule(self, ctx: View, differences: Sequence[Difference] | None) -> WrongRuleError | None:
        """What only the server names, where the rules' list counts; what only the rules name is baked in vain."""
        if self.accept_differences or ctx[RECIPE].discovery is not DiscoverySource.both:
            return None
        lines = wrong_rules(differences or ())
        return WrongRuleError(shortened(lines)) if lines else None


def answer_of(inquiry: Inquiry, store: Path, on_progress: OnProgress) -> ServerAnswer:
    """The answer to an earlier run, where this output has the caches that go with it; else the server is started."""
    starter = inquiry.starter
    digest = answer_digest(inquiry)
    answer = recall(store, digest)
    # DeepGEMM's list is remembered in the store; the other caches are in this output directory, or they are not.
    if answer is not None and is_covered(answer.entries, starter.askable.caches.entries(starter.cache_dir)):
        return answer
    return ask_and_keep(store, digest, lambda deep_gemm: inquiry.ask(deep_gemm, on_progress))


def shown_arguments(inquiry: Inquiry) -> list[str]:
    """The server's arguments as configured, without the path of the folder that stands in for the checkpoint."""
    arguments = next(iter(inquiry.variants.values()))
    return ["CHECKPOINT" if word == str(inquiry.checkpoint) else word for word in arguments]
