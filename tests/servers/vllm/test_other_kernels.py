"""Kernels of vLLM that no linear is behind."""

from __future__ import annotations

import pytest

from pipeline.servers.shared.problems import Kernel
from tests.servers.vllm.derived import vllm


@pytest.mark.parametrize(
    ("gpu", "tokens", "expected"), [("h200", 2, {1, 2}), ("h200", 3, {1}), ("h200", 4, {1, 4}), ("b200", 2, {1})]
)
def test_tokens_of_one_request_are_scored_together_where_the_kernel_can(
    gpu: str, tokens: int, expected: set[int]
) -> None:
    problems = vllm("deepseek_v32", gpu=gpu, tokens_per_request=tokens, max_running_requests=16).problems
    scored = [p for p in problems if p.kernel is Kernel.PAGED_MQA_LOGITS]
    assert {dict(p.options)["next_n"] for p in scored} == expected
    assert {p.m.largest for p in scored} == {16 if len(expected) == 2 else 16 * tokens}
