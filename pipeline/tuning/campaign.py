"""Which shapes each operation is tuned for, and tuning one operation after another."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pipeline.engine.errors import StageError
from pipeline.servers.derive import Workload
from pipeline.servers.shared.problems import Kernel
from pipeline.tuning.tactics import FUSED_MOE, ForeignFile, OpResult, Shape, Tuned, Tuner
from pipeline.workload.linears import Role, Split

log = logging.getLogger("preheat")
MAX_FOREIGN_FILES = 100


def shapes_of(op: str, workload: Workload, buckets: Sequence[int]) -> tuple[Shape, ...]:
    """What the servers would call the operation with: every dense problem, or the experts of every rank."""
    if op == FUSED_MOE:
        experts = dict.fromkeys(
            (w2.n, w2.k, w2.groups, workload.rules.routes_per_token)
            for rank in workload.pipeline_ranks
            for w2 in rank.linears
            if w2.role is Role.EXPERTS and w2.split is Split.ROW
        )
        return tuple((m, *sizes) for sizes in experts for m in buckets)
    weights = dict.fromkeys((gemm.n, gemm.k) for gemm in workload.problems if gemm.kernel is Kernel.DENSE)
    return tuple((m, n, k) for n, k in weights for m in buckets)


def tune_all(
    tuner: Tuner, shapes_of_op: Mapping[str, Sequence[Shape]], on_progress: Callable[[int, int], None]
) -> tuple[list[OpResult], tuple[Tuned, ...]]:
    """(what tuning each operation gave, the operations whose tactics are in a file now)."""
    results: list[OpResult] = []
    tuned: list[Tuned] = []
    for op, shapes in shapes_of_op.items():
        on_progress(len(results), len(shapes_of_op))
        tuner, result = tune_beside_foreign_files(tuner, op, shapes)
        results.append(result)
        if result.bad is None:
            tuned.append(Tuned(tuner, op, tuple(shapes)))
    on_progress(len(shapes_of_op), len(shapes_of_op))
    return results, tuple(tuned)


def require_tactics(tuner: Tuner, shapes_of_op: Mapping[str, Sequence[Shape]]) -> list[OpResult]:
    """What the file holds for each operation, with nothing tuned; StageError for a shape that has no tactic."""
    for op, shapes in shapes_of_op.items():
        if missing := tuner.missing(op, shapes):
            raise StageError(
                f"autotune.frozen: {len(missing)} of {len(shapes)} shapes of {op} have no tactic in {tuner.file}, "
                f"first (M, N, K) = {missing[0]}; tune once with autotune.frozen=false"
            )
    return [OpResult(op, num_entries=len(shapes)) for op, shapes in shapes_of_op.items()]


def tune_beside_foreign_files(tuner: Tuner, op: str, shapes: Sequence[Shape]) -> tuple[Tuner, OpResult]:
    """Tune into the file, or, where it belongs to another GPU or version, into a new one beside it."""
    for number in range(1, MAX_FOREIGN_FILES):
        try:
            return tuner, tuner.tune(op, shapes)
        except ForeignFile as error:
            beside = tuner.file.with_name(f"tactics-{number}.json")
            log.warning("%s is kept and not used: %s; tuning into %s", tuner.file, error, beside.name)
            tuner = replace(tuner, file=beside)
    raise StageError(f"{tuner.file.parent} is full of tactic files of other machines; remove what is not needed")


def replay_faults(tuned: Sequence[Tuned]) -> list[str]:
    """What a fresh process finds wrong: it loads the tactics, tunes nothing and executes each shape once."""
    faults = [operation.tuner.replay(operation.op, operation.shapes) for operation in tuned]
    return [fault for fault in faults if fault is not None]
