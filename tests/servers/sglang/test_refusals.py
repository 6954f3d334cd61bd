"""Layouts and flags with which SGLang would not start, or would fail at the first request."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.derive import model_facts
from pipeline.servers.registry import SERVERS
from pipeline.servers.sglang.flags import DeepEpMode, SglangFlags
from pipeline.workload.hf_config import Model
from pipeline.workload.linears import Role
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import DEEP_GEMM, deepseek, layout, shipped, target, workload_of
from tests.servers.sglang.layouts import TP4, TP8


def lines_of(model: Model, parallel: Parallel, **flags: Any) -> list[str]:
    """The lines of the ConfigError."""
    with pytest.raises(ConfigError) as refused:
        workload_of(model, parallel, **flags)
    return refused.value.lines


def test_experts_that_ep_does_not_divide_are_refused() -> None:
    (line,) = lines_of(deepseek(n_routed_experts=250), Parallel(tp=8, ep=8))
    assert "n_routed_experts 250" in line
    assert "parallel.ep" in line


def test_a_model_that_sglang_cannot_pipeline_is_refused_more_than_one_place() -> None:
    (line,) = lines_of(shipped("qwen3_next_80b"), Parallel(tp=4, pp=2))
    assert line.startswith("parallel.pp must be 1")


def test_a_dense_qwen35_meets_sglangs_check_of_experts() -> None:
    """Seen on the virtual GPU: (moe_intermediate_size=512 / moe_tp_size=8) % weight_block_size_n=128."""
    assert workload_of(shipped("qwen36_27b"), TP4).problems
    with pytest.raises(ConfigError, match="experts of 512 .* a scale block of 128; lower parallel.tp"):
        workload_of(shipped("qwen36_27b"), TP8)


@pytest.mark.parametrize(
    ("model", "reason"),
    [("glm46", "compressed-tensors experts"), ("deepseek_v4_flash", "FP4 experts"), ("gpt_oss_120b", "FP4 experts")],
)
def test_experts_on_which_the_deepgemm_runner_fails_are_refused(model: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"moe_runner_backend=deep_gemm: SGLang .*{reason}.* set it to auto"):
        workload_of(shipped(model), TP8, **DEEP_GEMM)


@pytest.mark.parametrize(
    ("model", "reason"), [("glm46", "no path for compressed-tensors experts"), ("deepseek_v4_flash", "FP4 experts")]
)
def test_experts_that_fail_behind_deepep_are_refused(model: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=f"moe_a2a_backend=deepep: SGLang .*{reason}.* set it to none"):
        workload_of(shipped(model), layout("dp8_ep8"))
    if model == "deepseek_v4_flash":
        assert workload_of(shipped(model), layout("dp8_ep8"), gpu="b200").problems


def test_more_ranks_than_experts_are_refused() -> None:
    lines = lines_of(deepseek(n_routed_experts=4), TP8)
    assert "parallel.tp 8 exceeds the model's 4 experts; lower parallel.tp" in lines


def test_pplx_needs_attention_data_parallelism_and_its_only_mode() -> None:
    lines = lines_of(deepseek(), Parallel(tp=8, moe_a2a_backend=A2A.pplx), deepep_mode=DeepEpMode.normal)
    assert lines == [
        "parallel.moe_a2a_backend=pplx needs parallel.attn_dp of at least 2 (moe_hook.py)",
        "parallel.moe_a2a_backend=pplx has no normal mode; set server.deepep_mode=auto",
    ]


UNDIVIDED: list[tuple[Model, set[Role], str]] = [
    (deepseek(num_attention_heads=130), {Role.ATTENTION, Role.KV_UP}, "num_attention_heads 130"),
    (deepseek(intermediate_size=18500), {Role.DENSE_MLP}, "intermediate_size 18500"),
    (deepseek(moe_intermediate_size=2100, n_shared_experts=0), {Role.EXPERTS}, "moe_intermediate_size 2100"),
    (
        shipped("qwen3_next_80b", moe_intermediate_size=1024, shared_expert_intermediate_size=1100),
        {Role.SHARED_EXPERTS},
        "shared experts' size 1100",
    ),
]


@pytest.mark.parametrize(("model", "roles", "expected"), UNDIVIDED, ids=[expected for *_, expected in UNDIVIDED])
def test_a_size_that_does_not_divide_is_refused_in_one_line(model: Model, roles: set[Role], expected: str) -> None:
    """Its shards cut a scale block too, and that is not said a second time."""
    facts, errors = model_facts(model)
    assert errors == []
    assert facts is not None
    rules = SERVERS["sglang"].rules(facts, TP8, SglangFlags(version="0.5.23"), target())
    cut = {linear.role for linear in rules.linears(range(facts.num_layers)) if rules.cut_blocks(linear)}
    assert cut == roles
    (line,) = lines_of(model, TP8)
    assert line.startswith(f"{expected} must be divisible by")
