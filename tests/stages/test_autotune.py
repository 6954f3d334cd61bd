from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.errors import SlotError, StageError
from pipeline.figures import AutotuneFigures
from pipeline.recipe import Device, DeviceKind
from pipeline.servers.sglang.flags import MoeRunner
from pipeline.slots import BATCH, TACTICS, WORKLOAD
from pipeline.tuning.campaign import shapes_of
from pipeline.tuning.tactics import OpResult, power_of_two_buckets
from stages.adapter import Adapter
from stages.align import Align
from stages.allocate import Allocate
from stages.autotune import Autotune, figures_of, nothing_can_be_timed
from stages.plan import Plan
from tests.servers.recipes import DEEP_GEMM
from tests.stages.runs import NOT_KNOWN, Bench, completed, recipe_of, recipe_without_rules, skipped


def before_autotune(folder: Path | None = None, **options: Any) -> Bench:
    bench = Bench(recipe_of(**options), folder=folder)
    bench.run(Plan(), Allocate(), Adapter(), Align())
    return bench


def write_tactics(bench: Bench, op: str) -> None:
    """A file as tuning leaves it: a tactic for every shape that the stage asks for."""
    buckets = power_of_two_buckets(bench.context.read(BATCH).requests)
    shapes = shapes_of(op, bench.context.read(WORKLOAD), buckets)
    keys = [f"('{op}', 'CublasRunner', ((1, {m}, {k}), (1, {k}, {n}), (0,)), ())" for m, n, k in shapes]
    file = bench.places.tactics / "tactics.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({key: ["CublasRunner", 1] for key in keys}))


def test_a_server_that_tunes_nothing_is_the_reason() -> None:
    result = skipped(before_autotune(**DEEP_GEMM).run(Autotune()))
    assert "SGLang tunes FlashInfer only for" in result.reason
    assert "deep_gemm" in result.reason


def test_a_server_that_tunes_is_skipped_for_want_of_a_device() -> None:
    bench = before_autotune(moe_runner_backend=MoeRunner.flashinfer_cutlass)
    result = skipped(bench.run(Autotune()))
    assert "device.kind=cpu" in result.reason
    assert bench.context.read(TACTICS) == ()
    assert result.figures == (AutotuneFigures(ops=[], tactics=0, reused=0),)


def test_operations_asked_for_without_a_gpu_are_named_in_the_reason() -> None:
    bench = before_autotune()
    result = skipped(bench.run(Autotune(ops=["bf16_gemm"])))
    assert result.reason.startswith("bf16_gemm: tactics are timed on the target GPU")
    assert bench.context.read(TACTICS) == ()
    assert not bench.places.tactics.exists()


def test_tactics_are_timed_on_the_target_gpu_alone() -> None:
    recipe = recipe_of()
    assert "device.kind=cpu has none" in (nothing_can_be_timed(recipe) or "")
    recipe.device = Device(kind=DeviceKind.cuda)
    recipe.target.num_sms = 130
    assert nothing_can_be_timed(recipe), "no machine has a GPU of 130 SMs"


def test_the_stage_keeps_to_its_contract() -> None:
    bench = before_autotune()
    reads = (*Autotune.reads[1:], *Autotune.may_read)
    narrow = bench.context.scoped("autotune", reads=reads, writes=Autotune.writes, ancestors=bench.ended)
    with pytest.raises(SlotError, match="reads .recipe. without declaring it"):
        Autotune(ops=["fp8_gemm"]).run(narrow)


def test_the_stage_allocates_nothing() -> None:
    bench = before_autotune()
    bench.run(Autotune())
    assert bench.allocated["autotune"] == 0
    assert len(bench.kernels.allocations) == 1


def test_frozen_without_a_file_names_the_first_shape_that_has_no_tactic() -> None:
    bench = before_autotune()
    with pytest.raises(StageError, match=r"autotune.frozen: .* of fp8_gemm have no tactic .* tune once"):
        bench.run(Autotune(ops=["fp8_gemm"], frozen=True))


def test_frozen_over_a_complete_file_counts_its_tactics_and_needs_no_gpu(tmp_path: Path) -> None:
    bench = before_autotune(tmp_path)
    write_tactics(bench, "fp8_gemm")
    result = completed(bench.run(Autotune(ops=["fp8_gemm"], frozen=True)))
    (figures,) = result.figures
    assert isinstance(figures, AutotuneFigures)
    assert figures.tactics == figures.reused
    assert (figures.tactics or 0) > 4
    assert result.summary == f"fp8_gemm: {figures.tactics} tactics, 0 new, default kept for 0"
    assert bench.context.read(TACTICS) == (), "nothing here can execute them"


def test_one_operation_without_a_tactic_is_enough_to_fail_a_frozen_run(tmp_path: Path) -> None:
    bench = before_autotune(tmp_path)
    write_tactics(bench, "fp8_gemm")
    with pytest.raises(StageError, match="of bf16_gemm have no tactic"):
        bench.run(Autotune(ops=["fp8_gemm", "bf16_gemm"], frozen=True))


def test_an_unknown_operation_is_answered_with_the_nearest_name() -> None:
    (line,) = Autotune(ops=["fp8_gem"]).config_errors(recipe_of())
    assert "did you mean 'fp8_gemm'" in line


@pytest.mark.parametrize("ops", [[], ["fp8_gemm", "bf16_gemm", "cutlass_fused_moe"]], ids=["none", "all"])
def test_known_operations_are_no_error(ops: list[str]) -> None:
    assert Autotune(ops=ops).config_errors(recipe_of()) == []


def test_the_figures_add_up_all_operations_and_tell_what_was_there_before() -> None:
    results = [OpResult("fp8_gemm", num_entries=8, num_new=3), OpResult("bf16_gemm", bad="it hung")]
    figures = figures_of(results)
    assert (figures.tactics, figures.reused) == (8, 5)
    assert [entry["op"] for entry in figures.ops or []] == ["fp8_gemm", "bf16_gemm"]
    assert [entry["bad"] for entry in figures.ops or []] == [None, "it hung"]


def test_without_rules_it_is_skipped_with_the_reason() -> None:
    bench = Bench(recipe_without_rules())
    result = skipped(bench.run(Plan(), Allocate(), Adapter(), Align(), Autotune(ops=["bf16_gemm"])))
    assert result.reason.startswith(NOT_KNOWN)
    assert bench.context.read(TACTICS) == ()
