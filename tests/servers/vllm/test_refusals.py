"""Layouts with which vLLM would not start."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.derive import derive
from pipeline.servers.vllm.flags import VllmFlags
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import deepseek, target
from tests.servers.vllm.derived import EP8, TP8, vllm


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        (Parallel(tp=8, ep=4), "parallel.ep must be 1 or parallel.tp 8"),
        (Parallel(tp=8, attn_cp=2), "parallel.attn_cp must be 1"),
        (Parallel(tp=8, moe_dense_tp_size=1), "parallel.moe_dense_tp_size is SGLang's"),
    ],
)
def test_what_vllm_does_not_have_is_refused(parallel: Parallel, expected: str) -> None:
    with pytest.raises(ConfigError) as refused:
        vllm(parallel=parallel)
    assert any(expected in line for line in refused.value.lines)


@pytest.mark.parametrize(
    ("changes", "parallel", "expected"),
    [
        ({"num_attention_heads": 130}, TP8, "num_attention_heads 130 must be divisible by the attention tp 8"),
        ({"intermediate_size": 18500}, TP8, "intermediate_size 18500 must be divisible by the tp 8"),
        ({"n_routed_experts": 250}, EP8, "the 250 experts must be divisible by all 8 ranks"),
    ],
    ids=["attention", "dense", "experts"],
)
def test_a_size_that_does_not_divide_is_refused_in_one_line(
    changes: dict[str, Any], parallel: Parallel, expected: str
) -> None:
    """The shard of heads or of the dense part cuts a scale block too, and that is not said a second time."""
    with pytest.raises(ConfigError) as refused:
        derive(deepseek(**changes), parallel, VllmFlags(version="0.33.0"), target())
    (line,) = refused.value.lines
    assert line.startswith(expected)
