from __future__ import annotations

from typing import Any

import pytest

from pipeline.servers.shared.legacy_quantization import CheckpointQuantization, read_quantization

BLOCK = {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [128, 128]}
CHANNEL = {"num_bits": 8, "type": "float", "strategy": "channel"}


def compressed(weights: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}, **more}


@pytest.mark.parametrize(
    ("config", "block", "scheme"),
    [
        (None, None, "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, (128, 128), "FP8 with 128x128"),
        ({"quant_method": "FP8", "weight_block_size": [32, 32]}, (32, 32), "FP8 with 32x32"),
        ({"quant_method": "fp8"}, None, "a scale for each tensor or channel"),
        ({"quant_method": "mxfp8"}, (1, 32), "MXFP8"),
        ({"quant_method": "mxfp4"}, None, "mxfp4, not block FP8"),
        ({"quant_method": "modelopt_fp4"}, None, "modelopt_fp4, not block FP8"),
        (compressed(BLOCK), (128, 128), "FP8 with 128x128"),
        (compressed(CHANNEL), None, "8-bit float per channel"),
        (compressed({"num_bits": 4, "type": "int", "strategy": "group"}), None, "4-bit int per group"),
    ],
)
def test_a_scheme_is_recognised_and_named(config: Any, block: tuple[int, int] | None, scheme: str) -> None:
    quantization, errors = read_quantization(config)
    assert (quantization.block, errors) == (block, [])
    assert scheme in quantization.scheme


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ("fp8", "must be an object"),
        ({"weight_block_size": [128, 128]}, "has no quant_method"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "must be two whole numbers"),
        ({"quant_method": "fp8", "weight_block_size": [128, -1]}, "must be two whole numbers"),
    ],
)
def test_what_is_wrong_is_told(config: Any, expected: str) -> None:
    _, (error,) = read_quantization(config)
    assert expected in error


def ignoring(*entries: str) -> CheckpointQuantization:
    return CheckpointQuantization("fp8", (128, 128), ignored=entries)


@pytest.mark.parametrize(
    ("entry", "module", "is_ignored"),
    [
        ("model.layers.0.self_attn.o_proj", "self_attn.o_proj", True),
        ("self_attn.o_proj", "self_attn.o_proj", True),
        ("model.layers.1.self_attn.o_proj", "self_attn.o_proj", False),
        ("model.layers.0.self_attn", "self_attn.o_proj", True),
        ("model.language_model.layers.0.mlp.gate_proj", "mlp.gate_up_proj", True),
        ("model.layers.0.self_attn.q_proj", "self_attn.qkv_proj", True),
        ("linear_attn.in_proj_z", "linear_attn.in_proj_qkvz", True),
        ("mlp.gate", "mlp.gate_up_proj", False),
        ("lm_head", "mlp.down_proj", False),
        ("re:.*self_attn.*", "self_attn.kv_b_proj", True),
        ("re:.*mlp\\.(gate|up|gate_up|down)_proj.*", "mlp.down_proj", True),
    ],
)
def test_a_module_is_ignored_by_path_suffix_piece_or_pattern(entry: str, module: str, is_ignored: bool) -> None:
    assert ignoring(entry).ignores(module, [0]) is is_ignored


def test_a_module_is_ignored_only_where_all_its_layers_are() -> None:
    some = ignoring("model.layers.0.mlp.down_proj")
    assert some.ignores("mlp.down_proj", [0])
    assert not some.ignores("mlp.down_proj", [0, 1])
