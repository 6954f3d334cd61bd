"""A wrong recipe is a ConfigError that holds one line for each thing to change, and each line names the key."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.derive import derive
from pipeline.servers.sglang.flags import SglangFlags
from pipeline.servers.shared.flags import ServerFlags
from pipeline.target import Target
from pipeline.workload.hf_config import Model
from pipeline.workload.model import Family
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import TINY, deepseek, server, target, tiny, workload_of


def refusal(model: Model, parallel: Parallel | None = None, **flags: Any) -> list[str]:
    """The lines of the ConfigError; each is checked to be one line."""
    with pytest.raises(ConfigError) as caught:
        workload_of(model, parallel or Parallel(), **flags)
    lines = caught.value.lines
    assert str(caught.value).splitlines() == lines
    assert len(set(lines)) == len(lines), "no line twice"
    assert caught.value.exit_code == 2
    return lines


def written(folder: Path, content: str) -> Model:
    """A model whose config.json holds this text."""
    path = folder / "config.json"
    path.write_text(content)
    return Model(name="mine", hf_config=str(path))


# Layouts.


def test_heads_that_tp_does_not_divide_are_refused() -> None:
    lines = refusal(deepseek(), Parallel(tp=3))
    (heads,) = [line for line in lines if "num_attention_heads 128" in line]
    assert "parallel.tp" in heads


def test_everything_that_tp_does_not_divide_is_told_at_once() -> None:
    lines = refusal(deepseek(), Parallel(tp=5))
    named = {line.split()[0] for line in lines}
    assert named == {"num_attention_heads", "moe_intermediate_size", "intermediate_size", "shared"}
    assert all("parallel." in line for line in lines)


def test_an_expert_shard_that_cuts_a_scale_block_is_refused() -> None:
    lines = refusal(deepseek(), Parallel(tp=32))
    w13, w2 = ([line for line in lines if line.startswith(f"mlp.experts.{name}")] for name in ("w13", "w2"))
    assert len(w13) == len(w2) == 1
    assert "N 64" in w13[0]
    assert "K 64" in w2[0]
    assert all("multiple of the scale block 128" in line and "parallel.ep" in line for line in w13 + w2)


def test_a_dense_shard_that_cuts_a_scale_block_is_refused() -> None:
    lines = refusal(deepseek(), Parallel(tp=32, ep=32))
    assert any(line.startswith("mlp.gate_up_proj: N 576") and "parallel.tp" in line for line in lines)
    assert any(line.startswith("mlp.down_proj: K 576") and "parallel.tp" in line for line in lines)


def test_a_shard_at_several_places_of_the_pipeline_is_refused_in_one_line() -> None:
    lines = refusal(deepseek(), Parallel(tp=32, pp=4))
    assert len([line for line in lines if line.startswith("mlp.experts.w13")]) == 1


def test_what_does_not_divide_and_what_cuts_a_block_are_told_together() -> None:
    """Heads over 24 ranks leave a remainder; an expert's columns are 128 a rank, a dense layer's 64 cut a block."""
    lines = refusal(deepseek(intermediate_size=24 * 64, moe_intermediate_size=3072), Parallel(tp=24))
    assert [line.split()[0] for line in lines] == ["num_attention_heads", "mlp.gate_up_proj:", "mlp.down_proj:"]


def test_more_places_of_the_pipeline_than_layers_are_refused() -> None:
    (line,) = refusal(tiny(), Parallel(pp=3))
    assert "parallel.pp 3" in line
    assert "2 layers" in line


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ([15, 15, 15, 15], ["sum to the model's 61 layers, got 60"]),
        ([20, 20, 21], ["has 3 entries, parallel.pp is 4"]),
        ([61, 0, 0, 0], ["numbers above 0"]),
        ([70, -3, -3, -3], ["numbers above 0"]),
        ([30, 30], ["has 2 entries, parallel.pp is 4", "got 60"]),
    ],
    ids=["wrong sum", "wrong length", "empty places", "negative", "both"],
)
def test_a_partition_that_does_not_fit_is_refused(partition: list[int], expected: list[str]) -> None:
    lines = refusal(deepseek(), Parallel(tp=8, pp=4, layer_partition=partition))
    assert len(lines) == len(expected)
    for line, words in zip(lines, expected, strict=True):
        assert line.startswith("parallel.layer_partition")
        assert words in line


@pytest.mark.parametrize(
    ("parallel", "key"),
    [
        (Parallel(tp=8, attn_dp=3), "parallel.attn_dp"),
        (Parallel(tp=8, attn_dp=2, attn_cp=3), "parallel.attn_dp"),
        (Parallel(tp=4, attn_dp=8), "parallel.attn_dp"),
        (Parallel(tp=8, ep=3), "parallel.ep"),
    ],
    ids=["attn_dp", "attn_dp * attn_cp", "more than tp", "ep"],
)
def test_widths_that_do_not_divide_tp_are_refused(parallel: Parallel, key: str) -> None:
    (line,) = refusal(deepseek(), parallel)
    assert f"parallel.tp {parallel.tp} must be a multiple" in line
    assert key in line


def test_a_dense_width_that_the_server_ignores_is_refused() -> None:
    (line,) = refusal(deepseek(), Parallel(tp=8, moe_dense_tp_size=3))
    assert line.startswith("parallel.moe_dense_tp_size must be null or 1, got 3")


@pytest.mark.parametrize("name", ["tp", "pp", "ep", "attn_dp", "attn_cp", "moe_dp"])
def test_a_size_below_one_is_refused(name: str) -> None:
    sizes: dict[str, Any] = {name: 0}
    assert refusal(deepseek(), Parallel(**sizes)) == [f"parallel.{name} must be at least 1, got 0"]


# Models.


def test_every_field_that_a_config_lacks_is_told_at_once(tmp_path: Path) -> None:
    facts = json.loads((TINY / "config.json").read_text())
    lacking = ("hidden_size", "kv_lora_rank", "num_experts_per_tok")
    facts["moe_intermediate_size"] = "wide"
    lines = refusal(written(tmp_path, json.dumps({key: facts[key] for key in facts if key not in lacking})))
    assert len(lines) == 4
    for name in (*lacking, "moe_intermediate_size"):
        assert any(line.startswith("model.hf_config") and name in line for line in lines), name


@pytest.mark.parametrize("value", [0, -1, 1.5, "7168", True, None])
def test_a_size_that_is_no_whole_number_above_zero_is_refused(value: Any) -> None:
    (line,) = refusal(deepseek(hidden_size=value))
    assert "hidden_size must be a whole number of at least 1" in line


def test_an_unsupported_family_is_refused_with_the_supported_ones() -> None:
    (line,) = refusal(tiny(architectures=["MambaForCausalLM"]))
    assert "MambaForCausalLM" in line
    assert "DeepseekV3ForCausalLM" in line
    assert "conf/model/tiny.yaml" in line


@pytest.mark.parametrize("architectures", [None, [], "DeepseekV3ForCausalLM", [3]])
def test_a_config_that_names_no_architecture_is_refused(architectures: Any) -> None:
    (line,) = refusal(tiny(architectures=architectures, model_type=None))
    assert "architecture None (model_type None) is not supported" in line


def test_a_config_without_architectures_is_read_by_its_model_type() -> None:
    assert workload_of(tiny(architectures=None), Parallel()).facts.family is Family.DEEPSEEK


@pytest.mark.parametrize("block", [[128], [128, 0], "128x128", 128])
def test_scale_blocks_that_are_not_two_numbers_are_refused(block: Any) -> None:
    (line,) = refusal(tiny(quantization_config={"quant_method": "fp8", "weight_block_size": block}))
    assert "weight_block_size must be two whole numbers" in line


def test_a_model_without_facts_asks_for_a_config() -> None:
    (line,) = refusal(Model(name="unheard"))
    assert "model.hf_config=PATH" in line


# Servers, targets, and all together.


@pytest.mark.parametrize("name", ["max_running_requests", "cuda_graph_max_bs", "tokens_per_request"])
def test_a_server_count_below_one_is_refused(name: str) -> None:
    flags: dict[str, Any] = {name: 0}
    assert refusal(deepseek(), **flags) == [f"server.{name} must be at least 1, got 0"]


def test_an_unknown_server_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"server.name 'sglan' has no rules here; known: sglang"):
        derive(deepseek(), Parallel(), ServerFlags(name="sglan"), target())


@pytest.mark.parametrize("capability", ["9", "8.9", "nine.zero"])
def test_a_target_that_deepgemm_does_not_serve_is_refused(capability: str) -> None:
    gpu = target()
    gpu.compute_capability = capability
    with pytest.raises(ConfigError, match="target.compute_capability"):
        derive(deepseek(), Parallel(), server(), gpu)


def test_mistakes_in_every_part_of_a_recipe_are_told_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        derive(
            Model(name="mine", hf_config=str(tmp_path)),
            Parallel(tp=8, attn_dp=3, moe_dense_tp_size=3, moe_a2a_backend=A2A.deepep),
            SglangFlags(tokens_per_request=0),
            Target(name="blank"),
        )
    for key in ("model.hf_config", "parallel.attn_dp", "parallel.moe_dense_tp_size", "server.tokens", "target.num_sms"):
        assert any(key in line for line in caught.value.lines), key


def test_layout_server_and_target_are_judged_together() -> None:
    wrong = Parallel(tp=3, pp=70)
    with pytest.raises(ConfigError) as refused:
        derive(deepseek(), wrong, server(cuda_graph_max_bs=0), replace(target(), num_sms=0))
    lines = "\n".join(refused.value.lines)
    for part in ("num_attention_heads 128", "parallel.pp 70 exceeds", "server.cuda_graph_max_bs", "target.num_sms"):
        assert part in lines
