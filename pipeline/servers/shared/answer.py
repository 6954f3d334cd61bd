"""What an installed server answered, and how a later run finds it again."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.deepgemm.discovery import STAND_IN
from pipeline.deepgemm.store import tree_digest
from pipeline.engine.scratch import scratch_folder
from pipeline.servers.shared.start import AskedProblem

if TYPE_CHECKING:
    from pipeline.servers.shared.inquiry import Inquiry

RESULT = "asked.json"
STAND_INS = Path(__file__).parent / "stand_ins"


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


def answer_digest(inquiry: Inquiry, environment: Mapping[str, str] = os.environ) -> str:
    """Digest of everything that decides what the server asks for."""
    starter = inquiry.starter
    prefix = starter.askable.variable_prefix
    own_variables = {name: value for name, value in environment.items() if name.startswith(prefix)}
    arguments = {
        name: [word for word in words if word != str(inquiry.checkpoint)] for name, words in inquiry.variants.items()
    }
    parts = (
        json.dumps(arguments),
        tree_digest(str(inquiry.checkpoint)),
        json.dumps(starter.server.versions, sort_keys=True),
        json.dumps(starter.gpu.environment(), sort_keys=True),
        json.dumps(own_variables | dict(inquiry.variables), sort_keys=True),
        starter.toolkit.version_text,
        STAND_IN.read_text(),
        tree_digest(str(STAND_INS)),
        tree_digest(str(starter.askable.script.parent)),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
