from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline.buffers.decode_set import AdapterKind
from pipeline.engine.errors import SlotError, StageError
from pipeline.engine.stage import Skipped
from pipeline.slots import DECODE_BUFFERS, FORWARD, RESERVED, ForwardResult
from pipeline.workload.parallel import A2A, Parallel
from pipeline.workload.servers import MoeRunner
from stages.adapter import Adapter
from stages.align import Align
from stages.allocate import Allocate
from stages.autotune import Autotune
from stages.plan import Plan
from tests.stages.runs import Bench, recipe_of
from tests.workload.recipes import DEEP_GEMM, tiny

DEEPEP = Parallel(tp=2, attn_dp=2, moe_a2a_backend=A2A.deepep)
SYNCED = Parallel(tp=6, attn_cp=2, moe_dense_tp_size=1)
SIX = {"num_attention_heads": 6, "moe_intermediate_size": 768}
RECIPES: dict[str, dict[str, Any]] = {
    "contiguous": {**DEEP_GEMM},
    "masked": {"parallel": DEEPEP},
    "two tokens": {"parallel": DEEPEP, "tokens_per_request": 2},
    "eager": {"adapter": AdapterKind.eager, "tokens_per_request": 2},
    "pipeline": {"parallel": Parallel(pp=2)},
}


def before_autotune(**options: Any) -> Bench:
    bench = Bench(recipe_of(**options))
    bench.run(Plan(), Allocate(), Adapter(), Align())
    return bench


def tuned(**options: Any) -> tuple[Bench, Skipped, ForwardResult]:
    bench = before_autotune(**options)
    result = bench.run(Autotune())
    assert isinstance(result, Skipped)
    return bench, result, bench.context.read(FORWARD)


@pytest.mark.parametrize("name", RECIPES)
def test_after_allocate_no_stage_allocates_a_byte(name: str) -> None:
    bench, _, _ = tuned(**RECIPES[name])
    assert {stage: bench.allocated[stage] for stage in ("adapter", "align", "autotune")} == dict.fromkeys(
        ("adapter", "align", "autotune"), 0
    )
    assert len(bench.kernels.asked) == 1


@pytest.mark.parametrize("name", RECIPES)
def test_the_forward_leaves_guards_and_addresses_as_they_were(name: str) -> None:
    bench, _, _ = tuned(**RECIPES[name])
    reserved = bench.context.read(RESERVED)
    assert reserved.arena.check_guards() == []
    assert reserved.arena.addresses() == reserved.addresses


def test_the_forward_runs_every_kind_of_layer_at_the_aligned_batch() -> None:
    _, result, forward = tuned(**DEEP_GEMM)
    # Dense: three of attention and two; experts: three, two shared and two routed; prefill has kv_b_proj besides.
    assert (forward.num_gemms, forward.batch) == (5 + 7 + 6 + 8, 8)
    expected = {"ops": [], "tactics": 0, "reused": 0, "forward_gemms": 26, "forward_batch": 8, "extend_tokens": 64}
    assert result.figures == expected | {"graphs_replayed": None, "forward_compiled": None}


@pytest.mark.parametrize("kind", [AdapterKind.decode_graph, AdapterKind.eager], ids=lambda kind: kind.name)
def test_the_batch_of_the_forward_suits_every_parallel_axis(kind: AdapterKind) -> None:
    flags = {"cuda_graph_max_bs": 7, "max_running_requests": 7}
    _, _, forward = tuned(model=tiny(**SIX), parallel=SYNCED, adapter=kind, **flags)
    assert forward.batch == 12


def test_the_forward_sees_no_sequence_of_length_zero() -> None:
    bench = before_autotune()
    buffers = bench.context.read(DECODE_BUFFERS)
    for name in ("seq_lens", "seq_lens_cpu"):
        buffers.fields[name].zero_()
    bench.run(Autotune())
    assert bench.context.read(FORWARD).min_seq_len == 1


@pytest.mark.parametrize(("parallel", "present"), [(Parallel(), False), (DEEPEP, True)], ids=["plain", "deepep"])
def test_the_forward_names_the_fields_it_saw_and_no_absent_one(parallel: Parallel, present: bool) -> None:
    _, _, forward = tuned(parallel=parallel)
    assert ("num_token_non_padded" in forward.fields) is present
    assert "mrope_positions" not in forward.fields
    assert list(forward.fields) == sorted(forward.fields)


def test_a_server_that_tunes_nothing_is_the_reason() -> None:
    _, result, _ = tuned(**DEEP_GEMM)
    assert "SGLang tunes FlashInfer only for" in result.reason
    assert "deep_gemm" in result.reason


def test_a_server_that_tunes_is_skipped_for_want_of_a_device() -> None:
    _, result, forward = tuned(moe_runner_backend=MoeRunner.flashinfer_cutlass)
    assert "device.kind=cpu" in result.reason
    assert forward.tactics == 0


def test_progress_counts_the_kinds_of_layer() -> None:
    bench, _, _ = tuned()
    told = [(event.data["what"], event.data["done"], event.data["total"]) for event in bench.events]
    assert told == [("layers", done, 4) for done in range(5)], "dense and with experts, decode and prefill"


def test_the_stage_keeps_to_its_contract() -> None:
    bench = before_autotune()
    narrow = bench.context.scoped("autotune", reads=(*Autotune.reads[1:], *Autotune.may_read), writes=Autotune.writes)
    with pytest.raises(SlotError, match="reads 'recipe' without declaring it"):
        Autotune().run(narrow)


def test_frozen_without_a_file_names_the_first_shape_that_has_no_tactic(tmp_path: Path) -> None:
    bench = before_autotune()
    bench.recipe.output.dir = str(tmp_path)
    with pytest.raises(StageError, match=r"autotune.frozen: .* of fp8_gemm have no tactic .* tune once"):
        bench.run(Autotune(ops=["fp8_gemm"], frozen=True))


def test_an_unknown_operation_is_answered_with_the_nearest_name() -> None:
    (problem,) = Autotune(ops=["fp8_gem"]).problems()
    assert "did you mean 'fp8_gemm'" in problem


def test_operations_asked_for_without_a_gpu_are_named_in_the_reason() -> None:
    bench = before_autotune()
    result = bench.run(Autotune(ops=["bf16_gemm"]))
    assert result.reason.startswith("bf16_gemm: tactics are timed on the target GPU")
