"""A file of FlashInfer tactics: tuned in children, the default in the race, saved whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pipeline.engine.children import Children
from pipeline.engine.jobs import Job
from pipeline.engine.report import to_json, write_atomically
from pipeline.engine.scratch import scratch_folder

PROJECT_ROOT = Path(__file__).parents[2]
# FlashInfer keeps what it chose in one file (autotune) and, from 0.7, in a store of many (autotune_v2): SGLang reads
# the first, vLLM on one GPU the second, and neither feeds the other.
AUTOTUNE = "autotune"
AUTOTUNE_V2 = "autotune_v2"
TUNABLE = ("fp8_gemm", "bf16_gemm")
# FlashInfer's own mark for "what you would take without tuning".
DEFAULT_TACTIC = -1
# A tuned tactic must beat the default by more than two timings of one kernel differ.
MARGIN = 0.02

FILE_KEY = re.compile(r"\('(?P<op>[\w:]+)', '\w+', \(\((?P<a>[\d, ]+)\), \((?P<b>[\d, ]+)\)")
FUSED_MOE = "cutlass_fused_moe"
# The two products that one call of cutlass_fused_moe tunes, by the names in FlashInfer's file.
FUSED_MOE_PRODUCTS = ("trtllm::fused_moe::gemm1", "trtllm::fused_moe::gemm2")

# (M, N, K) of a GEMM; (M, hidden, intermediate, experts, top-k) of cutlass_fused_moe.
Shape = tuple[int, ...]


@dataclass(slots=True)
class OpResult:
    """What tuning one operation gave; times are medians over all shapes, in microseconds."""

    op: str
    num_entries: int = 0
    num_profiled: int = 0
    num_new: int = 0
    num_default_kept: int = 0
    num_stored: int | None = None
    """Entries in the store of autotune_v2; None where FlashInfer has none (before 0.7)."""
    default_us: float | None = None
    chosen_us: float | None = None
    bad: str | None = None
    """Why it could not be tuned, or was not."""

    @property
    def margin(self) -> float | None:
        """How much less the chosen tactics take than the default; None when they were not timed."""
        if not self.default_us or self.chosen_us is None:
            return None
        return 1 - self.chosen_us / self.default_us

    def summary(self) -> str:
        """One line for people."""
        if self.bad is not None:
            return f"{self.op} not tuned: {self.bad}"
        line = f"{self.op}: {self.num_entries} tactics, {self.num_new} new, default kept for {self.num_default_kept}"
        if self.num_stored is not None:
            line += f", {self.num_stored} in autotune_v2's store"
        if self.margin is not None:
            line += f", {100 * self.margin:.1f} % less time than the default"
        return line

    def to_json(self) -> dict[str, Any]:
        """For the report."""
        margin = None if self.margin is None else round(self.margin, 4)
        return asdict(self) | {"margin": margin}


class ForeignFile(Exception):
    """The tactic file was made by another GPU or version; the message names the field that differs."""


@dataclass(frozen=True, slots=True)
class Tuner:
    """Tunes into `file`; one child for each operation, ended after `limit_s`."""

    file: Path
    children: Children
    buckets: Sequence[int]
    limit_s: float
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    code: Path = PROJECT_ROOT
    """Where the child finds pipeline.tuning.worker."""

    def tune(self, op: str, shapes: Sequence[Shape]) -> OpResult:
        """Profile what the file lacks; where the default wins by the margin, the file says so."""
        outcome, bad = self._child(op, shapes, tune=True)
        if outcome is None:
            return OpResult(op, bad=bad)
        if (refused := outcome.get("refused")) is not None:
            raise ForeignFile(refused)
        if (not_built := outcome.get("not_built")) is not None:
            return OpResult(op, bad=not_built)
        stored, bad = self._child(op, shapes, tune=True, interface=AUTOTUNE_V2)
        if stored is None:
            return OpResult(op, bad=bad)
        result = self._judge_race(op, shapes, outcome)
        result.num_stored = stored.get("entries")
        return result

    def _judge_race(self, op: str, shapes: Sequence[Shape], outcome: dict[str, Any]) -> OpResult:
        result = OpResult(op, num_entries=outcome["entries"], num_profiled=outcome["profiled"])
        default_us = outcome["default_us"]
        chosen_us = outcome["chosen_us"]
        if not default_us:
            return result
        losers = [
            shape
            for shape, default, chosen in zip(shapes, default_us, chosen_us, strict=True)
            if chosen > default * (1 + MARGIN)
        ]
        result.num_new = outcome["new_entries"]
        result.num_default_kept = self._keep_default(op, losers)
        result.default_us = sum(default_us)
        result.chosen_us = sum(min(pair) for pair in zip(default_us, chosen_us, strict=True))
        return result

    def replay(self, op: str, shapes: Sequence[Shape]) -> str | None:
        """Load the file in a fresh process and execute every shape once; what went wrong, or None."""
        if missing := self.missing(op, shapes):
            return (
                f"{op}: {len(missing)} of {len(shapes)} shapes have no tactic in {self.file.name}, first {missing[0]}"
            )
        stored = stored_keys(self.file.parent)
        if stored and (missing := missing_shapes(op, shapes, stored)):
            return f"{op}: {len(missing)} of {len(shapes)} shapes are not in autotune_v2's store, first {missing[0]}"
        for interface in (AUTOTUNE, AUTOTUNE_V2) if stored else (AUTOTUNE,):
            outcome, bad = self._child(op, shapes, tune=False, interface=interface)
            if outcome is None:
                return bad
            if outcome["profiled"]:
                return f"{op}: a fresh process profiled {outcome['profiled']} tactics again ({interface})"
        return None

    def missing(self, op: str, shapes: Sequence[Shape]) -> list[Shape]:
        """Shapes that the file has no entry for."""
        return missing_shapes(op, shapes, self._entries())

    def _entries(self) -> dict[str, Any]:
        return json.loads(self.file.read_text()) if self.file.exists() else {}

    def _keep_default(self, op: str, losers: Sequence[Shape]) -> int:
        content = self._entries()
        keys = [key for key in content if shape_of(key, op) in losers]
        for key in keys:
            runner = content[key][0]
            content[key] = [runner, DEFAULT_TACTIC]
        if keys:
            write_atomically(self.file, to_json(content))
        return len(keys)

    def _child(
        self, op: str, shapes: Sequence[Shape], *, tune: bool, interface: str = AUTOTUNE
    ) -> tuple[dict[str, Any] | None, str | None]:
        """(what the child reports, None), or (None, why there is no report)."""
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(self.file.parent, ".tuning-") as folder:
            copy = folder / self.file.name
            if self.file.exists():
                shutil.copyfile(self.file, copy)
            content = {"op": op, "shapes": shapes, "buckets": list(self.buckets), "tune": tune}
            content |= {"interface": interface, "file": str(copy), "store": str(self.file.parent)}
            path = ":".join(filter(None, [str(self.code), self.environment.get("PYTHONPATH")]))
            environment = self.environment | {"PYTHONPATH": path}
            answer = Job("pipeline.tuning.worker", content, folder, environment, self.limit_s).run(self.children)
            if answer.result is None:
                end = f"the tuning child ended with code {answer.returncode} (limit {self.limit_s} s)"
                return None, f"{op}: {end}: {answer.last_words}"
            if tune and copy.exists():
                write_atomically(self.file, copy.read_text())
            return answer.result, None


@dataclass(frozen=True, slots=True)
class Tuned:
    """An operation whose tactics are in the tuner's file, and the shapes that they cover."""

    tuner: Tuner
    op: str
    shapes: tuple[Shape, ...]


def stored_keys(root: Path) -> list[str]:
    """The keys of every entry in autotune_v2's store under `root`, in whatever environment it was made."""
    return [str(json.loads(path.read_text()).get("key")) for path in sorted(root.glob("v2/*/entries/*.json"))]


def missing_shapes(op: str, shapes: Sequence[Shape], entries: Iterable[str]) -> list[Shape]:
    """Shapes of an operation that no file key covers."""
    keys = list(entries)
    if op != FUSED_MOE:
        present = {shape_of(key, op) for key in keys}
        return [shape for shape in shapes if shape not in present]
    # The file's key of a grouped product begins with its activations [M, hidden].
    tuned_m = [{shape[0] for key in keys if (shape := shape_of(key, product))} for product in FUSED_MOE_PRODUCTS]
    return [shape for shape in shapes if not all(shape[0] in of_product for of_product in tuned_m)]


def shape_of(key: str, op: str) -> tuple[int, int, int] | None:
    """(M, N, K) of a file key of this operation, or None: ('fp8_gemm', 'Runner', ((1, m, k), (1, k, n), ...), ...)."""
    match = FILE_KEY.match(key)
    if match is None or match["op"] != op:
        return None
    *_, m, k = (int(size) for size in match["a"].split(","))
    n = int(match["b"].split(",")[-1])
    return m, n, k


def power_of_two_buckets(largest: int) -> list[int]:
    """1, 2, 4 up to the largest, and the largest itself."""
    powers = [1 << exponent for exponent in range(largest.bit_length()) if 1 << exponent <= largest]
    return sorted({*powers, largest})
