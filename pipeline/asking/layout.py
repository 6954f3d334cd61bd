"""Ask every distinct rank of a layout, or show that every one of them starts with no compiler in reach."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipeline.asking.caches import entries
from pipeline.asking.start import AskedProblem, Heard, Start, Starter
from pipeline.deepgemm.discovery import STAND_IN
from pipeline.deepgemm.store import tree_digest
from pipeline.engine.errors import ConfigError
from pipeline.engine.host import available_bytes, num_cores
from pipeline.engine.jobs import OnProgress
from pipeline.engine.scratch import scratch_folder

RESULT = "asked.json"
SCRATCH_PREFIX = "server-"
# A scheduler of a 61-layer model peaks at 1.4 GB here; its compilers take the rest.
BYTES_PER_START = 2 << 30


@dataclass(frozen=True, slots=True)
class Progress:
    """Where starts work and whom they tell."""

    scratch_dir: Path
    tell: OnProgress


@dataclass(frozen=True, slots=True)
class Asked:
    """What a layout's ranks asked for, and the private DeepGEMM cache that they filled with stubs."""

    stub_cache: Path
    starts: tuple[str, ...]
    problems: dict[AskedProblem, tuple[int, ...]]
    """The pipeline stages that asked for each."""
    compiled: dict[str, int]
    """New entries of each other cache."""
    there: dict[str, list[str]]
    """All entries of each other cache, in order."""
    cute_dsl: list[str]
    """CuTe-DSL kernels, with as many entries for each as one start compiled; every start compiles them again."""
    autotune_keys: list[str]
    """What FlashInfer would tune on the card: operation and shapes; nothing is timed here."""
    seconds: float
    peak_bytes: int
    tokens_answered: int
    faults: tuple[str, ...]
    """Why the list is not complete; empty when every start served its requests to the end."""
    is_new: bool = True

    def to_json(self) -> dict[str, Any]:
        """What an earlier run leaves for a later one, beside the private cache itself."""
        plain = (field.name for field in fields(self) if field.name not in ("stub_cache", "problems", "is_new"))
        problems = [[p.kernel, p.n, p.k, p.groups, list(stages)] for p, stages in self.problems.items()]
        return {name: getattr(self, name) for name in plain} | {"problems": problems}


def ask(starter: Starter, variants: Mapping[str, Sequence[str]], variables: Mapping[str, str], on: Progress) -> Asked:
    """Start every distinct rank in every variant; what was asked by a start that ended early is kept too."""
    before = entries(starter.cache_dir)
    heard = run_all(starter, variants, variables, on)
    after = entries(starter.cache_dir)
    problems: dict[AskedProblem, set[int]] = {}
    for start, said in heard.items():
        for problem in said.problems:
            problems.setdefault(problem, set()).add(start.pp_rank)
    return Asked(
        stub_cache=Path(variables["SGLANG_DG_CACHE_DIR"]),
        starts=tuple(start.name for start in heard),
        problems={problem: tuple(sorted(stages)) for problem, stages in problems.items()},
        compiled={name: len(after[name] - before[name]) for name in after},
        there={name: sorted(after[name]) for name in after},
        cute_dsl=most_of_each([said.cute_dsl for said in heard.values()]),
        autotune_keys=sorted({key for said in heard.values() for key in said.autotune_keys}),
        seconds=max((said.seconds for said in heard.values()), default=0.0),
        peak_bytes=max((said.peak_bytes or 0 for said in heard.values()), default=0),
        tokens_answered=sum(said.tokens_answered for said in heard.values()),
        faults=tuple(fault(start, said) for start, said in heard.items() if not said.finished),
    )


def most_of_each(starts: Iterable[Sequence[str]]) -> list[str]:
    """Each name as often as the start that has it most often."""
    most: Counter[str] = Counter()
    for names in starts:
        most |= Counter(names)
    return sorted(most.elements())


def run_all(
    starter: Starter, variants: Mapping[str, Sequence[str]], variables: Mapping[str, str], on: Progress
) -> dict[Start, Heard]:
    """The first start alone, because it knows how many stages there are; then the others side by side."""
    names = list(variants)
    first = Start(f"{names[0]}, stage 0", 0, tuple(variants[names[0]]))
    done: dict[Start, float] = {}
    total = [1]

    def run(start: Start) -> Heard:
        def progress(served: int, waves: int) -> None:
            done[start] = served / waves
            on.tell(int(100 * sum(done.values())), 100 * total[0])

        with scratch_folder(on.scratch_dir, SCRATCH_PREFIX) as folder:
            return starter.listen(start, folder, variables, progress)

    heard = {first: run(first)}
    if heard[first].refused:
        raise ConfigError(f"server.args: {refusal(heard[first])}")
    rest = [
        Start(f"{name}, stage {stage}", stage, tuple(arguments))
        for stage in range(heard[first].num_stages)
        for name, arguments in variants.items()
    ]
    rest = [start for start in rest if start != first]
    total[0] += len(rest)
    side_by_side = max(1, min(num_cores(), available_bytes() // BYTES_PER_START))
    with ThreadPoolExecutor(side_by_side, thread_name_prefix="server") as pool:
        heard |= dict(zip(rest, pool.map(run, rest), strict=True))
    return heard


def refusal(heard: Heard) -> str:
    """The server's own message about its arguments."""
    told = [line.partition("error: ")[2] for line in heard.lines if "error: " in line]
    return told[-1] if told else heard.lines[-1]


def fault(start: Start, heard: Heard) -> str:
    """Why a start did not serve its requests to the end, with the last of what it said."""
    unanswered = ""
    if heard.unanswered:
        names = ", ".join(heard.unanswered)
        unanswered = f"; the virtual GPU does not answer {names}: report the name with the lines below"
    how = (
        "did not come to its end before ask.limit_s was over"
        if heard.timed_out
        else f"ended after {heard.seconds:.0f} s"
    )
    shown = "\n".join(heard.lines)
    return f"the server ({start.name}) {how}{unanswered}\n{shown}"


def ask_in(
    root: Path,
    digest: str,
    starter: Starter,
    variants: Mapping[str, Sequence[str]],
    variables: Mapping[str, str],
    on: Progress,
) -> Asked:
    """Ask, and keep the answer under `root` for the next run; an incomplete one is kept apart and asked again."""
    with scratch_folder(root / "scratch", "asked-") as staging:
        made = staging / "made"
        (made / "deep_gemm" / "cache").mkdir(parents=True)
        asked = ask(starter, variants, {**variables, "SGLANG_DG_CACHE_DIR": str(made / "deep_gemm")}, on)
        (made / RESULT).write_text(json.dumps(asked.to_json()))
        folder = root / "asked" / (f"{digest}-incomplete" if asked.faults else digest)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            made.rename(folder)
    return _read(folder, is_new=True)


def recall(root: Path, digest: str) -> Asked | None:
    """What an earlier run asked for; None when there was none."""
    folder = root / "asked" / digest
    return _read(folder, is_new=False) if (folder / RESULT).exists() else None


def _read(folder: Path, *, is_new: bool) -> Asked:
    kept: dict[str, Any] = json.loads((folder / RESULT).read_text())
    problems = {AskedProblem(*problem): tuple(stages) for *problem, stages in kept.pop("problems")}
    kept |= {"starts": tuple(kept["starts"]), "faults": tuple(kept["faults"])}
    return Asked(stub_cache=folder / "deep_gemm", problems=problems, is_new=is_new, **kept)


def ask_digest(starter: Starter, variants: Mapping[str, Sequence[str]], checkpoint: Path) -> str:
    """Everything that decides what the server asks for."""
    relevant = {name: value for name, value in os.environ.items() if name.startswith("SGLANG_")}
    parts = (
        json.dumps(
            {name: [word for word in arguments if word != str(checkpoint)] for name, arguments in variants.items()}
        ),
        tree_digest(str(checkpoint)),
        json.dumps(starter.server.versions, sort_keys=True),
        json.dumps(starter.gpu.environment(), sort_keys=True),
        json.dumps(relevant, sort_keys=True),
        starter.toolkit.version_text,
        STAND_IN.read_text(),
        tree_digest(str(Path(__file__).parent / "inside")),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
