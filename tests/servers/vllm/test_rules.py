"""vLLM's rules by release; totals of whole logs are in test_ground_truth.py."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.derive import Workload, derive
from pipeline.servers.shared.flags import release
from pipeline.servers.shared.problems import Kernel, Problem
from pipeline.servers.vllm.flags import DeepEpDispatch, MoeBackend, VllmFlags, Warmup
from pipeline.servers.vllm.versions import CHANGES, NEWEST
from pipeline.servers.vllm.warmup import relaxed
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import deepseek, shipped, target

TP8 = Parallel(tp=8)
EP8 = Parallel(tp=8, attn_dp=8, ep=8)


def vllm(
    model: str = "deepseek", parallel: Parallel = TP8, version: str = "0.33.0", *, gpu: str = "h200", **flags: Any
) -> Workload:
    return derive(shipped(model), parallel, VllmFlags(version=version, **flags), target(gpu))


def problem_of(workload: Workload, linear: str) -> Problem:
    (found,) = [problem for problem in workload.problems if linear in problem.linears and "psum" not in problem.name]
    return found


def has(workload: Workload, linear: str) -> bool:
    return any(linear in problem.linears for problem in workload.problems)


# Layout: tp of attention, data-parallel engines, experts over all ranks.


def test_attention_data_parallel_groups_are_engines_of_their_own() -> None:
    assert problem_of(vllm(parallel=EP8), "self_attn.o_proj").k == 16384
    assert problem_of(vllm(parallel=EP8), "mlp.gate_up_proj").n == 36864, "dense layers follow the engine's own tp"


def test_shared_experts_are_whole_under_sequence_parallel_experts_only() -> None:
    both = Parallel(tp=8, attn_dp=4, ep=8)
    assert problem_of(vllm(parallel=both), "mlp.shared_experts.down_proj").k == 2048
    assert problem_of(vllm(), "mlp.shared_experts.down_proj").k == 256
    over_pplx = Parallel(tp=8, attn_dp=4, moe_a2a_backend=A2A.pplx)
    assert problem_of(vllm(parallel=over_pplx), "mlp.shared_experts.down_proj").k == 1024


@pytest.mark.parametrize(("version", "width"), [("0.28.0", 2), ("0.29.0", 1)])
def test_indexed_models_hold_dense_layers_whole_from_0_29(version: str, width: int) -> None:
    both = Parallel(tp=8, attn_dp=4, ep=8)
    assert problem_of(vllm("deepseek_v32", both, version), "mlp.down_proj").k == 18432 // width


@pytest.mark.parametrize(
    ("num_layers", "pp", "counts"), [(61, 4, [15, 15, 16, 15]), (61, 2, [31, 30]), (94, 4, [23, 24, 24, 23])]
)
def test_the_last_stage_gets_no_extra_layer(num_layers: int, pp: int, counts: list[int]) -> None:
    model = deepseek(num_hidden_layers=num_layers)
    found = derive(model, Parallel(pp=pp), VllmFlags(version="0.33.0"), target())
    assert [len(stage.layers) for stage in found.pipeline_ranks] == counts


@pytest.mark.parametrize(
    ("parallel", "said"),
    [
        (Parallel(tp=8, ep=4), "parallel.ep must be 1 or parallel.tp 8"),
        (Parallel(tp=8, attn_cp=2), "parallel.attn_cp must be 1"),
        (Parallel(tp=8, moe_dense_tp_size=1), "parallel.moe_dense_tp_size is SGLang's"),
    ],
)
def test_what_vllm_does_not_have_is_refused(parallel: Parallel, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        vllm(parallel=parallel)
    assert any(said in line for line in refused.value.lines)


# Which kernels, by release.


def test_the_vendored_library_compiles_n_and_k_in() -> None:
    assert problem_of(vllm(version="0.20.0"), "self_attn.o_proj").options == (("compiled_dims", "nk"),)
    assert problem_of(vllm(version="0.19.0"), "self_attn.o_proj").options == ()


@pytest.mark.parametrize(
    ("version", "gpu", "first"), [("0.24.0", "h200", 1), ("0.33.0", "h200", 32), ("0.33.0", "b200", 1)]
)
def test_small_m_on_hopper_are_flashinfers(version: str, gpu: str, first: int) -> None:
    assert problem_of(vllm(version=version, gpu=gpu), "self_attn.o_proj").m.smallest == first


@pytest.mark.parametrize(("version", "separate"), [("0.19.0", True), ("0.20.0", False)])
def test_the_indexers_key_is_fused_from_0_20(version: str, separate: bool) -> None:
    assert has(vllm("deepseek_v32", version=version), "self_attn.indexer.wk") is separate


@pytest.mark.parametrize(
    ("version", "is_served", "calls"), [("0.11.1", False, None), ("0.12.0", True, 0), ("0.30.0", True, 205)]
)
def test_a_width_of_2112_was_served_before_it_was_warmed(version: str, is_served: bool, calls: int | None) -> None:
    found = vllm(version=version, max_num_batched_tokens=8192)
    assert has(found, "self_attn.fused_qkv_a_proj_with_mqa") is is_served
    if is_served:
        assert problem_of(found, "self_attn.fused_qkv_a_proj_with_mqa").warmup_calls == calls


def test_blackwell_leaves_qwen35_to_other_kernels() -> None:
    assert vllm("qwen36_27b", Parallel(), gpu="b200").problems == ()
    assert vllm("qwen36_27b", Parallel(), gpu="h200").problems != ()


def test_a_switch_turns_everything_off() -> None:
    found = vllm(use_deep_gemm=False)
    assert found.problems == ()
    assert any("VLLM_USE_DEEP_GEMM=0" in entry.reason for entry in found.not_deepgemm)


# Experts.


def kernels(workload: Workload) -> set[tuple[Kernel, bool]]:
    return {(p.kernel, ("psum", 1) in p.options) for p in workload.problems if "mlp.experts.w13" in p.linears}


@pytest.mark.parametrize(
    ("parallel", "flags", "version", "expected"),
    [
        (TP8, {}, "0.33.0", set()),
        (TP8, {"moe_runner_backend": MoeBackend.deep_gemm}, "0.31.0", {(Kernel.CONTIGUOUS, False)}),
        (TP8, {"use_deep_gemm": True}, "0.32.0", {(Kernel.CONTIGUOUS, False), (Kernel.CONTIGUOUS, True)}),
        (TP8, {"moe_use_deep_gemm": False, "use_deep_gemm": True}, "0.33.0", set()),
        (
            Parallel(tp=8, attn_dp=8, moe_a2a_backend=A2A.deepep),
            {"deepep_mode": DeepEpDispatch.low_latency},
            "0.33.0",
            {(Kernel.MASKED, False)},
        ),
        (EP8, {}, "0.11.1", {(Kernel.CONTIGUOUS, False)}),
    ],
)
def test_the_experts_backend_and_layout_follow_flags_and_release(
    parallel: Parallel, flags: dict[str, Any], version: str, expected: set[tuple[Kernel, bool]]
) -> None:
    assert kernels(vllm(parallel=parallel, version=version, **flags)) == expected


def test_fp4_experts_are_another_backends() -> None:
    found = vllm("deepseek_v4_flash", Parallel(tp=2), use_deep_gemm=True)
    assert any("FP4 experts" in entry.reason for entry in found.not_deepgemm)


# Kernels of the indexer.


@pytest.mark.parametrize(
    ("gpu", "tokens", "expected"), [("h200", 2, {1, 2}), ("h200", 3, {1}), ("h200", 4, {1, 4}), ("b200", 2, {1})]
)
def test_tokens_of_one_request_are_scored_together_where_the_kernel_can(
    gpu: str, tokens: int, expected: set[int]
) -> None:
    found = vllm("deepseek_v32", gpu=gpu, tokens_per_request=tokens, max_running_requests=16).problems
    scored = [p for p in found if p.kernel is Kernel.PAGED_MQA_LOGITS]
    assert {dict(p.options)["next_n"] for p in scored} == expected
    assert {p.m.largest for p in scored} == {16 if len(expected) == 2 else 16 * tokens}


# The start-up's own lists.


@pytest.mark.parametrize(("n", "count"), [(2112, 205), (3072, 233), (7168, 292), (128, 142)])
def test_the_relaxed_list_has_the_known_lengths(n: int, count: int) -> None:
    assert len(relaxed(8192, n, 132)) == count


@pytest.mark.parametrize(("warmup", "calls"), [(Warmup.skip, 0), (Warmup.full, 8192), (Warmup.relax, 292)])
def test_the_start_up_launches_what_its_mode_says(warmup: Warmup, calls: int) -> None:
    assert problem_of(vllm(warmup=warmup), "self_attn.o_proj").warmup_calls == calls


def test_hopper_was_not_warmed_in_one_release() -> None:
    calls = [problem_of(vllm(version=v), "self_attn.o_proj").warmup_calls for v in ("0.24.0", "0.25.0", "0.26.0")]
    assert calls == [292, 0, 292]


def test_the_report_names_the_rules_of_the_release() -> None:
    assert len(vllm(version="0.33.0").rules.used) == len(CHANGES)
    assert len(vllm(version="0.11.0").rules.used) == 0
    assert vllm(version="0.14.2").rules.used[-1].startswith("vllm from 0.14.0")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0.33.0", (0, 33, 0)), ("0.21.1rc1.dev339+g19", (0, 21, 1)), ("0.26", (0, 26, 0)), ("main", None), ("", None)],
)
def test_a_version_is_read_from_what_builds_call_themselves(text: str, expected: tuple[int, int, int] | None) -> None:
    assert release(text) == expected
    assert max([*CHANGES, NEWEST]) == NEWEST


def test_a_version_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"server.version 'main' is not a version"):
        vllm(version="main")
