"""What an installed server answered, and how a later run finds it again."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pipeline.engine.scratch import scratch_folder
from pipeline.servers.shared.start import AskedProblem

RESULT = "asked.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAnswer:
    """What a layout's ranks asked for, and the private DeepGEMM cache that they filled with stubs."""

    stub_cache: Path
    starts: tuple[str, ...]
    problems: dict[AskedProblem, tuple[int, ...]]
    """Each with the pipeline ranks that asked for it."""
    compiled: dict[str, int]
    """New entries of each other cache."""
    entries: dict[str, list[str]]
    """All entries of each other cache, in order."""
    cute_dsl: list[str]
    """CuTe-DSL kernels, with as many entries for each as one start compiled; every start compiles them again."""
    autotune_keys: list[str]
    """What FlashInfer would tune on the card: operation and shapes; nothing is timed here."""
    seconds: float
    """The longest start."""
    peak_bytes: int
    tokens_answered: int
    faults: tuple[str, ...]
    """Why the list is not complete; empty when every start served its requests to the end."""
    is_new: bool = True
    """False for what an earlier run was answered."""

    def to_json(self) -> dict[str, Any]:
        """What an earlier run leaves for a later one, beside the private cache itself."""
        plain = (field.name for field in fields(self) if field.name not in ("stub_cache", "problems", "is_new"))
        problems = [[p.kernel, p.n, p.k, p.groups, list(pp_ranks)] for p, pp_ranks in self.problems.items()]
        return {name: getattr(self, name) for name in plain} | {"problems": problems}


def ask_and_keep(root: Path, digest: str, ask: Callable[[Path], ServerAnswer]) -> ServerAnswer:
    """Call `ask(DeepGEMM cache)` and keep the answer under `root`, where `recall` reads it.

    An incomplete answer is kept too, under a name that `recall` does not read.
    """
    with scratch_folder(root / "scratch", "asked-") as scratch:
        staging = scratch / "answer"
        (staging / "deep_gemm" / "cache").mkdir(parents=True)
        answer = ask(staging / "deep_gemm")
        (staging / RESULT).write_text(json.dumps(answer.to_json()))
        folder = root / "asked" / (f"{digest}-incomplete" if answer.faults else digest)
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            staging.rename(folder)
    return _read(folder, is_new=True)


def recall(root: Path, digest: str) -> ServerAnswer | None:
    """What an earlier run was answered; None when there was none."""
    folder = root / "asked" / digest
    return _read(folder, is_new=False) if (folder / RESULT).exists() else None


def _read(folder: Path, *, is_new: bool) -> ServerAnswer:
    record: dict[str, Any] = json.loads((folder / RESULT).read_text())
    problems = {AskedProblem(*problem): tuple(pp_ranks) for *problem, pp_ranks in record.pop("problems")}
    record |= {"starts": tuple(record["starts"]), "faults": tuple(record["faults"])}
    return ServerAnswer(stub_cache=folder / "deep_gemm", problems=problems, is_new=is_new, **record)
