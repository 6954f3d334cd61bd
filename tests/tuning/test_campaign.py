from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from pipeline.engine.children import Children
from pipeline.engine.errors import StageError
from pipeline.servers.sglang.flags import MoeRunner
from pipeline.servers.shared.problems import Kernel
from pipeline.tuning.campaign import (
    replay_faults,
    require_tactics,
    shapes_of,
    tune_all,
    tune_beside_foreign_files,
)
from pipeline.tuning.tactics import FUSED_MOE, Tuned, Tuner
from pipeline.workload.linears import Role, Split
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import tiny, workload_of
from tests.tuning.test_tactics import REPORT, SHAPES, WRITES, report, tuner, write

SHAPES_OF_OP = {"fp8_gemm": SHAPES, "bf16_gemm": SHAPES[:1]}
# A child that takes files of this GPU only, and tunes fp8_gemm but no other operation.
CHOOSY = """
content = json.load(open(file)) if __import__("os").path.exists(file) else {}
if content.get("_metadata", {}).get("gpu", "NVIDIA H200") != "NVIDIA H200":
    json.dump({"refused": "gpu is another", "profiled": 0}, open(sys.argv[2], "w"))
    sys.exit()
if job["op"] != "fp8_gemm":
    json.dump({"not_built": "no module", "profiled": 0}, open(sys.argv[2], "w"))
    sys.exit()
"""


def of_another_gpu(file: Path) -> str:
    """Make `file` one that CHOOSY refuses; its text."""
    text = json.dumps({"_metadata": {"gpu": "NVIDIA H100"}})
    file.write_text(text)
    return text


def test_a_gemm_is_tuned_for_every_dense_problem_at_every_bucket() -> None:
    workload = workload_of(tiny(), Parallel(), moe_runner_backend=MoeRunner.deep_gemm)
    weights = {(gemm.n, gemm.k) for gemm in workload.problems if gemm.kernel is Kernel.DENSE}
    shapes = shapes_of("fp8_gemm", workload, [1, 8])
    assert len(weights) > 1
    assert set(shapes) == {(m, n, k) for m in (1, 8) for n, k in weights}
    assert len(shapes) == 2 * len(weights), "each shape once, however many layers have it"
    assert [m for m, _, _ in shapes[:2]] == [1, 8]


@pytest.mark.parametrize("parallel", [Parallel(), Parallel(tp=2), Parallel(pp=2)], ids=["one", "tp2", "pp2"])
def test_the_fused_moe_is_tuned_for_the_experts_of_a_rank(parallel: Parallel) -> None:
    workload = workload_of(tiny(), parallel)
    (w2,) = {
        (linear.n, linear.k, linear.groups)
        for rank in workload.pipeline_ranks
        for linear in rank.linears
        if linear.role is Role.EXPERTS and linear.split is Split.ROW
    }
    hidden, intermediate, experts = w2
    top_k = workload.rules.routes_per_token
    assert shapes_of(FUSED_MOE, workload, [1, 8]) == tuple((m, hidden, intermediate, experts, top_k) for m in (1, 8))


def test_operations_are_tuned_one_after_another_and_one_that_cannot_be_costs_the_others_nothing(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    tuning = tuner(tmp_path, CHOOSY + WRITES + report([10.0, 20.0], [8.0, 15.0]))
    results, tuned = tune_all(tuning, SHAPES_OF_OP, lambda number, total: progress.append((number, total)))
    assert [(result.op, result.bad) for result in results] == [("fp8_gemm", None), ("bf16_gemm", "no module")]
    assert tuned == (Tuned(tuning, "fp8_gemm", tuple(SHAPES)),)
    assert progress == [(0, 2), (1, 2), (2, 2)]


def test_a_file_of_another_gpu_is_kept_and_all_operations_go_into_one_beside_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign = of_another_gpu(tmp_path / "tactics.json")
    tuning = tuner(tmp_path, CHOOSY + WRITES + report([10.0, 20.0], [8.0, 15.0]))
    with caplog.at_level(logging.WARNING, "preheat"):
        _, tuned = tune_all(tuning, {"fp8_gemm": SHAPES, "bf16_gemm": SHAPES}, lambda number, total: None)
    assert [operation.tuner.file.name for operation in tuned] == ["tactics-1.json"]
    assert (tmp_path / "tactics.json").read_text() == foreign
    assert (tmp_path / "tactics-1.json").exists()
    assert len(caplog.messages) == 1, "the second operation begins with the new file"
    assert "is kept and not used: gpu is another; tuning into tactics-1.json" in caplog.messages[0]


def test_further_foreign_files_are_passed_over(tmp_path: Path) -> None:
    for name in ("tactics.json", "tactics-1.json"):
        of_another_gpu(tmp_path / name)
    tuning = tuner(tmp_path, CHOOSY + WRITES + report([10.0, 20.0], [8.0, 15.0]))
    chosen, result = tune_beside_foreign_files(tuning, "fp8_gemm", SHAPES)
    assert (chosen.file.name, result.bad) == ("tactics-2.json", None)


def test_a_folder_full_of_foreign_files_is_an_error(tmp_path: Path) -> None:
    refuses = REPORT.format(result={"refused": "version is '0.6' in the file", "profiled": 0})
    with pytest.raises(StageError, match="is full of tactic files of other machines; remove"):
        tune_beside_foreign_files(tuner(tmp_path, refuses), "fp8_gemm", SHAPES)


def file_only(file: Path) -> Tuner:
    """A tuner that starts no child."""
    return Tuner(file, Children(), [1, 8], 1.0)


def test_frozen_takes_the_file_as_it_is_and_counts_its_shapes(tmp_path: Path) -> None:
    write(tmp_path / "tactics.json", {1: 3, 8: 5})
    (result,) = require_tactics(file_only(tmp_path / "tactics.json"), {"fp8_gemm": SHAPES})
    assert (result.op, result.num_entries, result.num_new, result.bad) == ("fp8_gemm", 2, 0, None)


def test_frozen_names_the_first_shape_without_a_tactic(tmp_path: Path) -> None:
    write(tmp_path / "tactics.json", {1: 3})
    with pytest.raises(StageError) as raised:
        require_tactics(file_only(tmp_path / "tactics.json"), {"fp8_gemm": SHAPES})
    assert str(raised.value) == (
        f"autotune.frozen: 1 of 2 shapes of fp8_gemm have no tactic in {tmp_path / 'tactics.json'}, "
        "first (M, N, K) = (8, 512, 256); tune once with autotune.frozen=false"
    )


def test_each_operation_is_replayed_from_its_own_file_and_only_faults_are_listed(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    write(tmp_path / "good" / "tactics.json", {1: 3, 8: 5})
    write(tmp_path / "bad" / "tactics.json", {1: 3})
    replayed = tuner(tmp_path / "good", report([], [], profiled=0))
    assert replay_faults([Tuned(replayed, "fp8_gemm", tuple(SHAPES))]) == []
    incomplete = file_only(tmp_path / "bad" / "tactics.json")
    both = [Tuned(replayed, "fp8_gemm", tuple(SHAPES)), Tuned(incomplete, "fp8_gemm", tuple(SHAPES))]
    assert replay_faults(both) == ["fp8_gemm: 1 of 2 shapes have no tactic in tactics.json, first (8, 512, 256)"]
    assert replay_faults(()) == []
