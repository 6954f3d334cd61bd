"""What holds for every part of vLLM's rules; totals of whole logs are in test_ground_truth.py."""

from __future__ import annotations

from tests.servers.vllm.derived import vllm


def test_a_switch_turns_everything_off() -> None:
    workload = vllm(use_deep_gemm=False)
    assert workload.problems == ()
    assert any("VLLM_USE_DEEP_GEMM=0" in entry.reason for entry in workload.not_deepgemm)
