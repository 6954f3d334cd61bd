"""Kernels of SGLang that no linear is behind, and the further SM counts of those that are."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.servers.sglang.flags import PdRole
from pipeline.servers.shared.problems import Kernel, Problem
from pipeline.servers.shared.standalone import mixing_splits
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import DEEP_GEMM, deepseek, shipped, workload_of
from tests.servers.sglang.layouts import behind

TP8 = Parallel(tp=8)


def of_kernel(kernel: Kernel, model: str, parallel: Parallel = TP8, **flags: Any) -> list[Problem]:
    return [p for p in workload_of(shipped(model), parallel, **flags).problems if p.kernel is kernel]


def test_an_indexer_scores_keys_in_prefill_and_in_decode() -> None:
    (prefill,) = of_kernel(Kernel.MQA_LOGITS, "deepseek_v32")
    assert (prefill.n, prefill.k, prefill.m.largest, prefill.options) == (64, 128, 8192, ())
    (decode,) = of_kernel(Kernel.PAGED_MQA_LOGITS, "deepseek_v32")
    assert (decode.options, decode.m.largest) == ((("next_n", 1),), 132), "more requests than SMs are cut into calls"
    (schedule,) = of_kernel(Kernel.PAGED_MQA_METADATA, "deepseek_v32")
    assert schedule.m.largest == 512
    assert schedule.warmup_calls == 0, "no sweep of the server visits it"


@pytest.mark.parametrize(("gpu", "options", "rows"), [("h200", {1}, 1024), ("b200", {1, 2}, 512)])
def test_speculative_tokens_are_rows_on_hopper_and_taken_together_on_blackwell(
    gpu: str, options: set[int], rows: int
) -> None:
    flags: dict[str, Any] = {"gpu": gpu, "tokens_per_request": 2}
    assert {p.options[0][1] for p in of_kernel(Kernel.PAGED_MQA_LOGITS, "deepseek_v32", **flags)} == options
    (schedule,) = of_kernel(Kernel.PAGED_MQA_METADATA, "deepseek_v32", **flags)
    assert schedule.m.largest == rows


def test_every_place_of_the_pipeline_but_the_last_keeps_an_sm_free_while_it_scores() -> None:
    problems = of_kernel(Kernel.MQA_LOGITS, "deepseek_v32", Parallel(tp=8, pp=2))
    assert {(p.options, p.ranks[0]) for p in problems} == {((("num_sms", 131),), 0), ((), 8)}


@pytest.mark.parametrize(
    ("role", "absent"), [(PdRole.prefill, Kernel.PAGED_MQA_LOGITS), (PdRole.decode, Kernel.MQA_LOGITS)]
)
def test_a_server_with_one_half_of_the_work_scores_one_way(role: PdRole, absent: Kernel) -> None:
    assert of_kernel(absent, "deepseek_v32", disaggregation_mode=role) == []


def test_the_indexers_query_runs_on_half_of_the_sms_in_a_captured_graph() -> None:
    """dsa_indexer.py: 132 / 2 rounded up to 8, up to 1024 tokens."""
    (half,) = [p for p in of_kernel(Kernel.DENSE, "deepseek_v32") if p.options]
    assert (half.linears, half.options, half.m.largest) == (("self_attn.indexer.wq_b",), (("num_sms", 72),), 1024)
    assert not [p for p in of_kernel(Kernel.DENSE, "deepseek_v32", disable_cuda_graph=True) if p.options]


@pytest.mark.parametrize(
    ("gpu", "flags", "groups"), [("h200", {}, []), ("h200", {"fp8_wo_a": True}, [2]), ("b200", {}, [2])]
)
def test_v4s_grouped_output_is_an_einsum_where_it_is_fp8(gpu: str, flags: dict[str, Any], groups: list[int]) -> None:
    problems = of_kernel(Kernel.EINSUM, "deepseek_v4_flash", Parallel(tp=4), gpu=gpu, **flags)
    assert [p.groups for p in problems] == groups
    assert all((p.n, p.k) == (1024, 4096) for p in problems)


def test_v4_mixes_its_streams_by_a_kernel_for_each_number_of_splits() -> None:
    problems = of_kernel(Kernel.HC_PRENORM, "deepseek_v4_flash", Parallel(tp=4))
    assert {(p.n, p.k) for p in problems} == {(24, 16384)}
    splits = {p.options[0][1]: p.m for p in problems}
    assert sum(map(len, splits.values())) == 8192, "every number of tokens of a chunk, each once"
    assert max(splits) == 64
    for number, m in splits.items():
        assert {mixing_splits(tokens, 16384, 132) for tokens in m} == {number}


def test_long_prefills_of_v4_score_without_pages() -> None:
    (scores,) = of_kernel(Kernel.MQA_LOGITS, "deepseek_v4_flash", chunked_prefill_size=16384)
    assert (scores.m.smallest, scores.m.largest, scores.options) == (8192, 16384, (("compressed", 1),))
    assert of_kernel(Kernel.MQA_LOGITS, "deepseek_v4_flash", chunked_prefill_size=4096) == []


@pytest.mark.parametrize(
    ("version", "flags", "expected"),
    [
        ("0.4.5", {}, True),
        ("0.5.23", {}, False),
        ("0.5.23", {"use_deepgemm_bmm": True}, True),
        ("0.4.5", {"use_deepgemm_bmm": False}, False),
    ],
)
def test_absorbed_products_were_masked_ones_by_default_before_0_5(
    version: str, flags: dict[str, Any], expected: bool
) -> None:
    workload = workload_of(deepseek(), TP8, version=version, **flags)
    masked = {(p.n, p.k, p.groups) for p in workload.problems if p.kernel is Kernel.MASKED}
    assert masked == ({(512, 128, 16), (128, 512, 16)} if expected else set())


def test_deterministic_inference_gives_router_and_head_to_deepgemm() -> None:
    problems = of_kernel(Kernel.BF16_DENSE, "deepseek", enable_deterministic_inference=True)
    assert {p.linears[0]: (p.n, p.k, p.m.largest) for p in problems} == {
        "mlp.gate": (256, 7168, 8192),
        "lm_head": (129280 // 8, 7168, 512),
    }
    listed = {entry.layer for entry in workload_of(deepseek(), TP8, enable_deterministic_inference=True).not_deepgemm}
    assert not {"mlp.gate", "lm_head"} & listed
    assert of_kernel(Kernel.BF16_DENSE, "deepseek") == []


def test_deterministic_inference_of_a_bf16_model_gives_it_every_linear() -> None:
    bf16 = deepseek(quantization_config=None)
    problems = workload_of(bf16, TP8, enable_deterministic_inference=True, **DEEP_GEMM).problems
    names = {name for p in problems if p.kernel is Kernel.BF16_DENSE for name in p.linears}
    assert {"self_attn.q_b_proj", "self_attn.o_proj", "mlp.down_proj", "lm_head", "mlp.gate"} <= names
    assert "self_attn.kv_b_proj" not in names, "prefill absorbs it"


NAMES = ("self_attn.o_proj", "mlp.shared_experts.gate_up_proj")


def options_of(parallel: Parallel, **flags: Any) -> dict[str, set[int | str]]:
    problems = workload_of(deepseek(), parallel, **flags).problems
    return {name: {p.options[0][1] for p in problems if p.options and name in p.linears} for name in NAMES}


def test_two_batch_overlap_leaves_sms_to_the_dispatcher() -> None:
    options = options_of(behind(A2A.deepep), enable_two_batch_overlap=True)
    assert options == dict.fromkeys(NAMES, {112})


def test_single_batch_overlap_leaves_sms_to_the_combine() -> None:
    options = options_of(behind(A2A.deepep), enable_single_batch_overlap=True)
    assert options == {NAMES[0]: set(), NAMES[1]: {129}}
