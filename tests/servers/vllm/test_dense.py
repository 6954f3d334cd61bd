"""Which quantised linears DeepGEMM serves, at which M, by release."""

from __future__ import annotations

import pytest

from pipeline.workload.parallel import Parallel
from tests.servers.vllm.derived import has, problem_of, vllm


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
    workload = vllm(version=version, max_num_batched_tokens=8192)
    assert has(workload, "self_attn.fused_qkv_a_proj_with_mqa") is is_served
    if is_served:
        assert problem_of(workload, "self_attn.fused_qkv_a_proj_with_mqa").warmup_calls == calls


def test_blackwell_leaves_qwen35_to_other_kernels() -> None:
    assert vllm("qwen36_27b", Parallel(), gpu="b200").problems == ()
    assert vllm("qwen36_27b", Parallel(), gpu="h200").problems != ()
