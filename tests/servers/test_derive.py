from __future__ import annotations

from functools import cache

import pytest

from pipeline.servers.derive import Workload
from pipeline.servers.shared.problems import Kernel
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import DEEP_GEMM, KIMI_K2, deepseek, keys_of, layout, shapes_of, workload_of

# DeepSeek-V3's shards under SGLang 0.5.23, worked out by hand; None: fused into the routed experts.
COLUMNS = {
    "tp8": Parallel(tp=8),
    "tp16": Parallel(tp=16),
    "tp8 ep8": Parallel(tp=8, ep=8),
    "tp8 attn_dp8 deepep": Parallel(tp=8, attn_dp=8, moe_a2a_backend=A2A.deepep),
    "tp32 attn_dp32 deepep": Parallel(tp=32, attn_dp=32, moe_a2a_backend=A2A.deepep, moe_dense_tp_size=1),
}
WIDTHS = [(8, 8), (16, 16), (8, 1), (1, 1), (1, 1)]
ROWS = {
    "self_attn.fused_qkv_a_proj_with_mqa": ["2112x7168"] * 5,
    "self_attn.q_b_proj": ["3072x1536", "1536x1536", "3072x1536", "24576x1536", "24576x1536"],
    "self_attn.kv_b_proj": ["4096x512", "2048x512", "4096x512", "32768x512", "32768x512"],
    "self_attn.o_proj": ["7168x2048", "7168x1024", "7168x2048", "7168x16384", "7168x16384"],
    "mlp.gate_up_proj": ["4608x7168", "2304x7168", "4608x7168", "4608x7168", "36864x7168"],
    "mlp.down_proj": ["7168x2304", "7168x1152", "7168x2304", "7168x2304", "7168x18432"],
    "mlp.shared_experts.gate_up_proj": [None, None, "512x7168", "4096x7168", "4096x7168"],
    "mlp.shared_experts.down_proj": [None, None, "7168x256", "7168x2048", "7168x2048"],
    "mlp.experts.w13": ["512x7168 (257)", "256x7168 (257)", "4096x7168 (32)", "4096x7168 (32)", "4096x7168 (8)"],
    "mlp.experts.w2": ["7168x256 (257)", "7168x128 (257)", "7168x2048 (32)", "7168x2048 (32)", "7168x2048 (8)"],
}
CELLS = [
    pytest.param(column, linear, expected, id=f"{column}-{linear}")
    for linear, row in ROWS.items()
    for column, expected in zip(COLUMNS, row, strict=True)
]


@cache
def of_column(column: str) -> Workload:
    return workload_of(deepseek(), COLUMNS[column])


@pytest.mark.parametrize(("column", "linear", "expected"), CELLS)
def test_a_linear_of_deepseek_v3_has_the_shape_of_the_worked_table(
    column: str, linear: str, expected: str | None
) -> None:
    assert shapes_of(of_column(column)).get(linear) == expected


@pytest.mark.parametrize(("column", "widths"), list(zip(COLUMNS, WIDTHS, strict=True)))
def test_the_widths_of_attention_and_experts_are_those_of_the_worked_table(
    column: str, widths: tuple[int, int]
) -> None:
    assert (COLUMNS[column].attn_tp, COLUMNS[column].moe_tp) == widths


def test_the_worked_table_names_every_linear_there_is() -> None:
    for column in COLUMNS:
        assert shapes_of(of_column(column)).keys() <= ROWS.keys()


def test_kimi_k2_over_sixteen_ranks_has_its_own_shapes_and_is_not_fused() -> None:
    workload = workload_of(deepseek(**KIMI_K2), Parallel(tp=16))
    assert shapes_of(workload) == {
        "self_attn.fused_qkv_a_proj_with_mqa": "2112x7168",
        "self_attn.q_b_proj": "768x1536",
        "self_attn.kv_b_proj": "1024x512",
        "self_attn.o_proj": "7168x512",
        "mlp.gate_up_proj": "2304x7168",
        "mlp.down_proj": "7168x1152",
        "mlp.shared_experts.gate_up_proj": "256x7168",
        "mlp.shared_experts.down_proj": "7168x128",
        "mlp.experts.w13": "256x7168 (384)",
        "mlp.experts.w2": "7168x128 (384)",
    }
    assert [layer for layer in range(workload.facts.num_layers) if not workload.facts.is_moe(layer)] == [0]


def test_without_a_query_rank_the_query_is_one_column_split_projection() -> None:
    shapes = shapes_of(workload_of(deepseek(q_lora_rank=None), Parallel(tp=8)))
    assert shapes["self_attn.q_proj"] == "3072x7168"
    assert shapes["self_attn.kv_a_proj_with_mqa"] == "576x7168"
    assert "self_attn.fused_qkv_a_proj_with_mqa" not in shapes
    assert "self_attn.q_b_proj" not in shapes


def test_dense_layers_are_on_the_ranks_at_the_first_place_of_the_pipeline_only() -> None:
    workload = workload_of(deepseek(), layout("pp4"))
    dense = [problem for problem in workload.problems if {"mlp.gate_up_proj", "mlp.down_proj"} & {*problem.linears}]
    assert {(problem.n, problem.k) for problem in dense} == {(4608, 7168), (7168, 2304)}
    for problem in dense:
        assert problem.ranks == tuple(range(8))
        assert problem.layers == (0, 1, 2)


def test_every_other_problem_is_on_every_rank_of_four_places() -> None:
    workload = workload_of(deepseek(), layout("pp4"), **DEEP_GEMM)
    problems = [problem for problem in workload.problems if not any(n.startswith("mlp.g") for n in problem.linears)]
    problems = [problem for problem in problems if "mlp.down_proj" not in problem.linears]
    assert len(problems) == 8
    for problem in problems:
        assert problem.ranks == tuple(range(32)), problem.name
        assert problem.layers == tuple(range(3 if problem.groups > 1 else 0, 61)), problem.name


def test_four_places_together_need_what_one_place_needs() -> None:
    one_place, four_places = (workload_of(deepseek(), Parallel(tp=8, pp=pp), **DEEP_GEMM) for pp in (1, 4))
    assert keys_of(one_place) == keys_of(four_places)


def test_places_of_the_pipeline_hold_the_layers_and_ranks_of_the_servers_split() -> None:
    places = workload_of(deepseek(), layout("pp4")).pipeline_ranks
    assert [(place.layers[0], place.layers[-1] + 1) for place in places] == [(0, 15), (15, 30), (30, 45), (45, 61)]
    assert [place.ranks for place in places] == [tuple(range(8 * i, 8 * i + 8)) for i in range(4)]


def test_a_written_partition_replaces_the_servers_split() -> None:
    workload = workload_of(deepseek(), Parallel(tp=8, pp=4, layer_partition=[16, 15, 15, 15]))
    assert [len(place.layers) for place in workload.pipeline_ranks] == [16, 15, 15, 15]


def test_a_written_partition_is_ignored_without_a_pipeline() -> None:
    workload = workload_of(deepseek(), Parallel(tp=8, layer_partition=[1, 2, 3]))
    assert [len(place.layers) for place in workload.pipeline_ranks] == [61]


def test_two_linears_of_one_shape_are_one_problem_that_names_both() -> None:
    workload = workload_of(deepseek(), Parallel(tp=8, moe_a2a_backend=A2A.deepep))
    (shared,) = [problem for problem in workload.problems if problem.key == (Kernel.DENSE, 7168, 2048, 1, ())]
    assert shared.linears == ("self_attn.o_proj", "mlp.shared_experts.down_proj")
    assert shared.layers == tuple(range(61))
    assert len(shared.rules) == 2


def test_every_problem_cites_a_rule() -> None:
    for problem in workload_of(deepseek(), layout("dp8_ep8")).problems:
        assert problem.rules
        assert all(".py" in rule for rule in problem.rules), problem.rules


def test_a_checkpoint_without_block_scales_needs_nothing_of_deepgemm() -> None:
    workload = workload_of(deepseek(quantization_config=None), Parallel(tp=8))
    assert workload.problems == ()
    reasons = {entry.layer.split()[0]: entry.reason for entry in workload.not_deepgemm}
    assert "128x128" in reasons["self_attn.o_proj"]
    assert "Triton" in reasons["mlp.experts.w13"]


def test_bf16_experts_under_the_deepgemm_runner_need_its_bf16_kernels() -> None:
    workload = workload_of(deepseek(quantization_config=None), Parallel(tp=8), **DEEP_GEMM)
    assert {problem.kernel for problem in workload.problems} == {Kernel.BF16_MASKED, Kernel.BF16_CONTIGUOUS}


def test_what_never_reaches_deepgemm_is_listed_with_its_reason() -> None:
    listed = {entry.layer: entry.reason for entry in workload_of(deepseek(), Parallel(tp=8)).not_deepgemm}
    for layer in ("mlp.gate", "lm_head", "model.embed_tokens", "self_attn absorbed kv_b_proj (w_kc, w_vc)"):
        assert listed[layer]


def test_a_problem_is_either_launched_or_listed_as_not_launched() -> None:
    for parallel in COLUMNS.values():
        workload = workload_of(deepseek(), parallel)
        launched = {name for problem in workload.problems for name in problem.linears}
        absent = {entry.layer.split()[0] for entry in workload.not_deepgemm}
        for name in shapes_of(workload):
            assert (name in launched) != (name in absent), name


def first_layer_plain() -> Model:
    """DeepSeek-V3 whose first layer keeps o_proj and the dense MLP in bf16."""
    quantization = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": [
            "model.layers.0.self_attn.o_proj",
            "model.layers.0.mlp.gate_proj",
            "model.layers.0.mlp.up_proj",
            "model.layers.0.mlp.down_proj",
        ],
    }
    return deepseek(quantization_config=quantization)


def test_a_linear_that_is_plain_in_one_layer_is_a_problem_for_the_others_only() -> None:
    workload = workload_of(first_layer_plain(), Parallel(tp=8))
    (out,) = [problem for problem in workload.problems if "self_attn.o_proj" in problem.linears]
    assert out.layers == tuple(range(1, 61))
    (entry,) = [entry for entry in workload.not_deepgemm if entry.layer.startswith("self_attn.o_proj")]
    assert entry.layer == "self_attn.o_proj 7168x2048 (layers 0)"
    assert "unquantised" in entry.reason
