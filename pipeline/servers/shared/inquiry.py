"""Start every distinct rank of a layout and collect what the server asks its compilers for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.engine.errors import ConfigError
from pipeline.engine.host import available_bytes, num_cores
from pipeline.engine.jobs import OnProgress
from pipeline.engine.scratch import scratch_folder
from pipeline.servers.shared.answer import ServerAnswer
from pipeline.servers.shared.start import AskedProblem, Start, Starter, StartReport

SCRATCH_PREFIX = "server-"
# A scheduler of a 61-layer model peaks at 1.4 GB here; its compilers take the rest.
BYTES_PER_START = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """Every way in which a recipe's server is started."""

    starter: Starter
    variants: Mapping[str, Sequence[str]]
    """The server's arguments in each way, by the way's name."""
    variables: Mapping[str, str]
    """Options of the recipe that are environment variables of the server."""
    checkpoint: Path
    """The folder that the server takes for the checkpoint."""
    scratch_dir: Path
    """Where starts have their working folders."""

    def ask(
        self, deep_gemm: Path, on_progress: OnProgress, more_variables: Mapping[str, str] | None = None
    ) -> ServerAnswer:
        """Start every distinct rank in every variant over this DeepGEMM cache.

        The answer holds what a start asked for before it ended early, too. ConfigError when the server refuses its
        arguments. `more_variables` win over the inquiry's own.
        """
        caches = self.starter.askable.caches
        cache_dir = self.starter.cache_dir
        variables = {
            **self.variables,
            self.starter.deep_gemm_variable: str(deep_gemm),
            **(more_variables or {}),
        }
        before = caches.entries(cache_dir)
        reports = _run_all(self, variables, on_progress)
        after = caches.entries(cache_dir)
        compiled = {name: len(after[name] - before[name]) for name in after}
        entries = {name: sorted(after[name]) for name in after}
        return _answer(reports, deep_gemm, compiled, entries)


def _answer(
    reports: Mapping[Start, StartReport], deep_gemm: Path, compiled: dict[str, int], entries: dict[str, list[str]]
) -> ServerAnswer:
    return ServerAnswer(
        stub_cache=deep_gemm,
        starts=tuple(start.name for start in reports),
        problems=_pp_ranks_of_problems(reports),
        compiled=compiled,
        entries=entries,
        cute_dsl=most_of_each([report.cute_dsl for report in reports.values()]),
        autotune_keys=sorted({key for report in reports.values() for key in report.autotune_keys}),
        seconds=max((report.seconds for report in reports.values()), default=0.0),
        peak_bytes=max((report.peak_bytes or 0 for report in reports.values()), default=0),
        tokens_answered=sum(report.tokens_answered for report in reports.values()),
        faults=tuple(fault(start, report) for start, report in reports.items() if not report.finished),
    )


def _pp_ranks_of_problems(reports: Mapping[Start, StartReport]) -> dict[AskedProblem, tuple[int, ...]]:
    pp_ranks: dict[AskedProblem, set[int]] = {}
    for start, report in reports.items():
        for problem in report.problems:
            pp_ranks.setdefault(problem, set()).add(start.pp_rank)
    return {problem: tuple(sorted(ranks)) for problem, ranks in pp_ranks.items()}


def most_of_each(starts: Iterable[Sequence[str]]) -> list[str]:
    """Each name as many times as in the start where it occurs most often, in order."""
    most: Counter[str] = Counter()
    for names in starts:
        most |= Counter(names)
    return sorted(most.elements())


@dataclass(slots=True)
class _Served:
    """Adds up the share of its requests that each start has served."""

    on_progress: OnProgress
    num_starts: int = 1
    share_of_start: dict[Start, float] = field(default_factory=dict[Start, float])

    def of(self, start: Start) -> Callable[[int, int], None]:
        """The callback of one start; it takes the requests served and their total."""

        def note(served: int, total: int) -> None:
            self.share_of_start[start] = served / total
            self.on_progress(int(100 * sum(self.share_of_start.values())), 100 * self.num_starts)

        return note


def _run_all(inquiry: Inquiry, variables: Mapping[str, str], on_progress: OnProgress) -> dict[Start, StartReport]:
    """The first start alone, because it reports the number of pipeline ranks; then the others side by side."""
    served = _Served(on_progress)

    def run(start: Start) -> StartReport:
        with scratch_folder(inquiry.scratch_dir, SCRATCH_PREFIX) as folder:
            return inquiry.starter.run(start, folder, variables, served.of(start))

    name, arguments = next(iter(inquiry.variants.items()))
    first = Start(f"{name}, stage 0", 0, tuple(arguments))
    reports = {first: run(first)}
    if reports[first].refused:
        raise ConfigError(f"server.args: {refusal(reports[first])}")
    rest = [start for start in _all_starts(inquiry, reports[first].num_pipeline_ranks) if start != first]
    served.num_starts += len(rest)
    side_by_side = max(1, min(num_cores(), available_bytes() // BYTES_PER_START))
    with ThreadPoolExecutor(side_by_side, thread_name_prefix="server") as pool:
        reports |= dict(zip(rest, pool.map(run, rest), strict=True))
    return reports


def _all_starts(inquiry: Inquiry, num_pipeline_ranks: int) -> list[Start]:
    return [
        Start(f"{name}, stage {pp_rank}", pp_rank, tuple(arguments))
        for pp_rank in range(num_pipeline_ranks)
        for name, arguments in inquiry.variants.items()
    ]


def refusal(report: StartReport) -> str:
    """The server's message about the arguments that it refused."""
    messages = [line.partition("error: ")[2] for line in report.lines if "error: " in line]
    return messages[-1] if messages else report.lines[-1]


def fault(start: Start, report: StartReport) -> str:
    """Why a start did not serve its requests to the end, with the last of what it printed."""
    unanswered = ""
    if report.unanswered:
        names = ", ".join(report.unanswered)
        unanswered = f"; the virtual GPU does not answer {names}: report the name with the lines below"
    ending = f"ended after {report.seconds:.0f} s"
    if report.timed_out:
        ending = "did not come to its end before server.start_limit_s was over"
    last_lines = "\n".join(report.lines)
    return f"the server ({start.name}) {ending}{unanswered}\n{last_lines}"
