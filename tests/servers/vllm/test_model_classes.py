"""What vLLM's model classes do in a way of their own."""

from __future__ import annotations

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.derive import derive
from pipeline.servers.vllm.flags import VllmFlags
from pipeline.servers.vllm.model_classes import CLASSES, VllmModelClass, class_of
from pipeline.workload.model import Family
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import shipped, target
from tests.servers.vllm.derived import problem_of, vllm


@pytest.mark.parametrize("model", ["deepseek", "qwen3_8b", "llama33_70b"])
def test_a_family_without_an_entry_has_the_class_that_most_of_them_have(model: str) -> None:
    facts = vllm(model).facts
    assert facts.family not in CLASSES
    assert class_of(facts) == VllmModelClass()


@pytest.mark.parametrize(("model", "family"), [("glm45", Family.GLM4_MOE), ("deepseek_v4_flash", Family.DEEPSEEK_V4)])
def test_a_family_with_an_entry_has_its_own_class(model: str, family: Family) -> None:
    assert class_of(vllm(model, Parallel(tp=4)).facts) is CLASSES[family]


def test_no_entry_says_only_what_is_the_default() -> None:
    assert [family for family, own in CLASSES.items() if own == VllmModelClass()] == []


@pytest.mark.parametrize(("version", "k"), [("0.26.0", 1024), ("0.27.0", 2048)])
def test_v4_holds_shared_experts_whole_under_sequence_parallel_experts_from_0_27(version: str, k: int) -> None:
    layout = Parallel(tp=4, attn_dp=2, ep=4)
    assert problem_of(vllm("deepseek_v4_flash", layout, version), "mlp.shared_experts.down_proj").k == k


def test_v4_rounds_shared_experts_to_whole_scale_blocks_from_0_24() -> None:
    """768 columns over 4 ranks are one and a half scale blocks each."""
    model = shipped("deepseek_v4_flash", moe_intermediate_size=768)
    layout = Parallel(tp=4, ep=4)
    with pytest.raises(ConfigError, match=r"mlp.shared_experts.gate_up_proj: N 192 of one shard"):
        derive(model, layout, VllmFlags(version="0.23.0"), target())
    rounded = derive(model, layout, VllmFlags(version="0.24.0"), target())
    assert problem_of(rounded, "mlp.shared_experts.down_proj").k == 256
