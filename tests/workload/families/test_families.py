"""Shapes of each family under SGLang 0.5.23, worked out by hand from the config and the model's source."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.derive import model_facts
from pipeline.servers.sglang.flags import FusedShared
from pipeline.workload.families import FAMILIES, MODULES, Read
from pipeline.workload.model import Family
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import ROOT, shapes_of, shipped, workload_of

TP2 = Parallel(tp=2)
TP4 = Parallel(tp=4)
TP8 = Parallel(tp=8)
DP4 = Parallel(tp=4, attn_dp=4, moe_a2a_backend=A2A.deepep)
EP8 = Parallel(tp=8, ep=8)

WORKED: list[tuple[str, Parallel, dict[str, Any], dict[str, str]]] = [
    # Qwen3-8B: 32 query and 8 key-value heads of 128, I 12288.
    ("qwen3_8b", TP2, {}, {
        "self_attn.qkv_proj": "3072x4096", "self_attn.o_proj": "4096x2048",
        "mlp.gate_up_proj": "12288x4096", "mlp.down_proj": "4096x6144",
    }),
    # 4 key-value heads over 8 ranks: each rank holds one of them, twice over.
    ("qwen3_235b_a22b", EP8, {}, {
        "self_attn.qkv_proj": "1280x4096", "self_attn.o_proj": "4096x1024",
        "mlp.experts.w13": "3072x4096 (16)", "mlp.experts.w2": "4096x1536 (16)",
    }),
    # Qwen3-Next: gated query (doubled), one shared expert of the routed size, fused on CUDA.
    ("qwen3_next_80b", TP4, {}, {
        "self_attn.qkv_proj": "2560x2048", "self_attn.o_proj": "2048x1024",
        "linear_attn.in_proj_qkvz": "3072x2048", "linear_attn.out_proj": "2048x1024",
        "mlp.experts.w13": "256x2048 (513)", "mlp.experts.w2": "2048x128 (513)",
    }),
    ("qwen3_next_80b", DP4, {}, {
        "self_attn.qkv_proj": "9216x2048", "self_attn.o_proj": "2048x4096",
        "linear_attn.in_proj_qkvz": "12288x2048", "linear_attn.out_proj": "2048x4096",
        "mlp.shared_expert.gate_up_proj": "1024x2048", "mlp.shared_expert.down_proj": "2048x512",
        "mlp.experts.w13": "1024x2048 (128)", "mlp.experts.w2": "2048x512 (128)",
    }),
    # Qwen3.5 does not fuse.
    ("qwen35_35b_a3b", TP2, {}, {
        "self_attn.qkv_proj": "4608x2048", "self_attn.o_proj": "2048x2048",
        "linear_attn.in_proj_qkvz": "6144x2048", "linear_attn.out_proj": "2048x2048",
        "mlp.shared_expert.gate_up_proj": "512x2048", "mlp.shared_expert.down_proj": "2048x256",
        "mlp.experts.w13": "512x2048 (256)", "mlp.experts.w2": "2048x256 (256)",
    }),
    ("qwen36_27b", TP2, {}, {
        "self_attn.qkv_proj": "7168x5120", "self_attn.o_proj": "5120x3072",
        "linear_attn.in_proj_qkvz": "8192x5120", "linear_attn.out_proj": "5120x3072",
        "mlp.gate_up_proj": "17408x5120", "mlp.down_proj": "5120x8704",
    }),
    # DeepSeek-V3.2: an indexer of 64 heads of 128; its class is not among those that fuse.
    ("deepseek_v32", TP8, {}, {
        "self_attn.fused_qkv_a_proj_with_mqa": "2112x7168", "self_attn.q_b_proj": "3072x1536",
        "self_attn.indexer.wq_b": "8192x1536", "self_attn.indexer.wk": "128x7168",
        "self_attn.kv_b_proj": "4096x512", "self_attn.o_proj": "7168x2048",
        "mlp.gate_up_proj": "4608x7168", "mlp.down_proj": "7168x2304",
        "mlp.shared_experts.gate_up_proj": "512x7168", "mlp.shared_experts.down_proj": "7168x256",
        "mlp.experts.w13": "512x7168 (256)", "mlp.experts.w2": "7168x256 (256)",
    }),
    ("glm5", TP8, {}, {
        "self_attn.fused_qkv_a_proj_with_mqa": "2624x6144", "self_attn.q_b_proj": "2048x2048",
        "self_attn.indexer.wq_b": "4096x2048", "self_attn.indexer.wk": "128x6144",
        "self_attn.kv_b_proj": "3584x512", "self_attn.o_proj": "6144x2048",
        "mlp.gate_up_proj": "3072x6144", "mlp.down_proj": "6144x1536",
        "mlp.experts.w13": "512x6144 (257)", "mlp.experts.w2": "6144x256 (257)",
    }),
    ("deepseek_v4_flash", TP4, {}, {
        "self_attn.wqkv_a": "1536x4096", "self_attn.wq_b": "8192x1024", "self_attn.indexer.wq_b": "8192x1024",
        "self_attn.wo_b": "4096x2048",
        "mlp.shared_experts.gate_up_proj": "1024x4096", "mlp.shared_experts.down_proj": "4096x512",
        "mlp.experts.w13": "1024x4096 (256)", "mlp.experts.w2": "4096x512 (256)",
    }),
    ("glm45", TP4, {"shared_experts_fusion": FusedShared.off}, {
        "self_attn.qkv_proj": "3584x5120", "self_attn.o_proj": "5120x3072",
        "mlp.gate_up_proj": "6144x5120", "mlp.down_proj": "5120x3072",
        "mlp.shared_experts.gate_up_proj": "768x5120", "mlp.shared_experts.down_proj": "5120x384",
        "mlp.experts.w13": "768x5120 (160)", "mlp.experts.w2": "5120x384 (160)",
    }),
    ("llama33_70b", TP8, {}, {
        "self_attn.qkv_proj": "1280x8192", "self_attn.o_proj": "8192x1024",
        "mlp.gate_up_proj": "7168x8192", "mlp.down_proj": "8192x3584",
    }),
    ("minimax_m2", EP8, {}, {
        "self_attn.qkv_proj": "1024x3072", "self_attn.o_proj": "3072x768",
        "mlp.experts.w13": "3072x3072 (32)", "mlp.experts.w2": "3072x1536 (32)",
    }),
]  # fmt: skip


@pytest.mark.parametrize(
    ("model", "parallel", "flags", "expected"), WORKED, ids=[f"{case[0]}-tp{case[1].tp}" for case in WORKED]
)
def test_each_family_has_the_shapes_of_the_worked_table(
    model: str, parallel: Parallel, flags: dict[str, Any], expected: dict[str, str]
) -> None:
    assert shapes_of(workload_of(shipped(model), parallel, **flags)) == expected


def test_sliding_and_full_layers_have_heads_of_their_own() -> None:
    """MiMo-V2: 64 heads of 192 and 128; 4 key-value heads in full layers, 8 in sliding ones."""
    workload = workload_of(shipped("mimo_v2_flash"), TP4)
    layers_of_shape = {(p.n, p.k): p.layers for p in workload.problems if "self_attn.qkv_proj" in p.linears}
    full = 16 * 192 + 192 + 128
    sliding = 16 * 192 + 2 * (192 + 128)
    assert set(layers_of_shape) == {(full, 4096), (sliding, 4096)}
    assert (layers_of_shape[full, 4096][:2], len(layers_of_shape[full, 4096])) == ((0, 5), 9)
    reasons = {entry.layer.split()[0]: entry.reason for entry in workload.not_deepgemm}
    assert "unquantised" in reasons["self_attn.o_proj"], "the checkpoint lists every o_proj as ignored"


def test_layers_that_share_their_key_choice_have_no_indexer() -> None:
    """GLM-5.2: the first three layers choose, then every fourth."""
    workload = workload_of(shipped("glm52"), TP8)
    (problem,) = [p for p in workload.problems if "self_attn.indexer.wq_b" in p.linears and not p.options]
    assert problem.layers[:5] == (0, 1, 2, 6, 10)
    assert len(problem.layers) == 21


@pytest.mark.parametrize(
    ("fields", "indexed"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"index_topk_pattern": "FSSFSS"}, [0, 3]),
        ({"indexer_types": ["full", "shared", "full", "shared", "full", "shared"]}, [0, 2, 4]),
        ({"index_topk_freq": 2}, [0, 1, 3, 5]),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 2}, [0, 1, 3, 5]),
    ],
)
def test_each_way_of_sharing_a_key_choice_is_read(fields: dict[str, Any], indexed: list[int]) -> None:
    facts = workload_of(shipped("deepseek_v32", num_hidden_layers=6, **fields), TP8).facts
    assert [layer for layer in range(6) if facts.layers[layer].attention.kind == "indexed"] == indexed


def test_a_text_config_inside_a_multimodal_one_is_read() -> None:
    nested = shipped("qwen35_35b_a3b")
    flat = shipped("qwen35_35b_a3b")
    flat.config = {**flat.config, **flat.config["text_config"]}
    del flat.config["text_config"]
    assert shapes_of(workload_of(nested, TP2)) == shapes_of(workload_of(flat, TP2))


def test_kimi_k25_keeps_everything_from_deepgemm_and_says_why() -> None:
    workload = workload_of(shipped("kimi_k25"), TP8)
    assert workload.problems == ()
    reasons = {entry.layer.split()[0]: entry.reason for entry in workload.not_deepgemm}
    assert "unquantised" in reasons["self_attn.o_proj"]
    assert "compressed-tensors" in reasons["mlp.gate_up_proj"]
    assert reasons["vision"].startswith("bf16")


@pytest.mark.parametrize(
    ("model", "parallel", "expected"),
    [
        ("qwen3_30b_a3b", TP4, "mlp.experts.w13: N 192"),
        ("qwen3_235b_a22b", TP8, "mlp.experts.w13: N 192"),
        ("qwen3_coder_480b", TP8, "mlp.experts.w13: N 320"),
        ("minimax_m2", TP8, "mlp.experts.w13: N 192"),
        ("qwen3_next_80b", TP8, "mlp.experts.w13: N 64"),
    ],
)
def test_a_shard_that_cuts_a_scale_block_is_refused_for_every_family(
    model: str, parallel: Parallel, expected: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        workload_of(shipped(model), parallel)
    assert any(line.startswith(expected) or expected in line for line in refused.value.lines), refused.value.lines


@pytest.mark.parametrize("architectures", [["GptOssForCausalLM"]])
def test_a_model_without_block_fp8_plans_nothing_and_is_no_error(architectures: list[str]) -> None:
    workload = workload_of(shipped("gpt_oss_120b", architectures=architectures), Parallel())
    assert workload.problems == ()
    assert any("mxfp4" in entry.reason for entry in workload.not_deepgemm)


# Which family a model is of.

MODELS = sorted(path.stem for path in (ROOT / "conf" / "model").glob("*.yaml"))


def family_of(model: str) -> Family:
    facts, errors = model_facts(shipped(model))
    assert errors == []
    assert facts is not None
    return facts.family


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_reader_sets_a_family_that_no_other_sets(module: ModuleType) -> None:
    readers = {model: _reader_of(model) for model in MODELS}
    own = {family_of(model) for model, reader in readers.items() if reader is module.read}
    other = {family_of(model) for model, reader in readers.items() if reader is not module.read}
    assert own
    assert not own & other


def _reader_of(model: str) -> Read:
    (name, *_) = shipped(model).config["architectures"]
    return FAMILIES[name]


def test_every_family_is_set_by_a_reader() -> None:
    assert {family_of(model) for model in MODELS} == set(Family)
