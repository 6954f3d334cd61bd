"""Kernels that no linear is behind."""

from __future__ import annotations

import pytest

from pipeline.servers.rules import Deployment
from pipeline.servers.shared.problems import Kernel, MList
from pipeline.servers.shared.standalone import StandaloneKernel, mixing_splits, residual_mixing
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import shipped, target, workload_of


@pytest.mark.parametrize(("tokens", "expected"), [(1, 64), (64, 64), (129, 44), (8192, 1), (4224, 2)])
def test_splits_fall_as_tokens_grow(tokens: int, expected: int) -> None:
    assert mixing_splits(tokens, 16384, 132) == expected


def test_the_residual_mixing_has_a_kernel_for_each_number_of_splits_and_every_m_once() -> None:
    deployment = workload_of(shipped("deepseek_v4_flash"), Parallel(tp=4)).rules
    assert isinstance(deployment, Deployment)
    kernels = residual_mixing(deployment, MList.up_to(300), "a rule")
    assert {(kernel.kernel, kernel.n, kernel.k, kernel.rule) for kernel in kernels} == {
        (Kernel.HC_PRENORM, 4 * (2 + 4), 4 * 4096, "a rule")
    }
    assert sorted(m for kernel in kernels for m in kernel.m) == list(range(1, 301))
    options = [kernel.options for kernel in kernels]
    assert len(set(options)) == len(options)
    for kernel in kernels:
        (splits,) = {mixing_splits(m, kernel.k, target().num_sms) for m in kernel.m}
        assert kernel.options == (("num_splits", splits),)


def test_a_kernel_becomes_a_problem_that_no_start_of_a_server_visits() -> None:
    kernel = StandaloneKernel(kernel=Kernel.MQA_LOGITS, n=64, k=128, m=MList.up_to(4), rule="a rule")
    problem = kernel.problem("self_attn.indexer", [3, 1], (0, 1))
    assert (problem.name, problem.m, problem.rules) == ("mqa_logits 64x128", MList.up_to(4), ("a rule",))
    assert (problem.linears, problem.layers, problem.ranks) == (("self_attn.indexer",), (1, 3), (0, 1))
    assert problem.warmup_calls == 0
