"""What a rank holds and launches under SGLang, beyond what the tests of each part of its rules say."""

from __future__ import annotations

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import deepseek, shapes_of, shipped, workload_of
from tests.servers.sglang.layouts import TP4, behind


def test_redundant_experts_are_spread_over_the_ranks() -> None:
    shapes = shapes_of(workload_of(deepseek(), behind(A2A.deepep), ep_num_redundant_experts=32))
    assert shapes["mlp.experts.w13"] == "4096x7168 (36)"


def test_the_draft_layer_brings_its_own_projections() -> None:
    """DeepSeek-V4's e_proj and h_proj are FP8; the latter sees every residual stream of a token."""
    plain, drafting = (workload_of(shipped("deepseek_v4_flash"), TP4, mtp=mtp) for mtp in (False, True))
    names = {name for problem in drafting.problems for name in problem.linears}
    assert names - {name for problem in plain.problems for name in problem.linears} == {"draft.e_proj", "draft.h_proj"}
    (square,) = [p for p in drafting.problems if "draft.e_proj" in p.linears]
    assert (square.n, square.k, square.layers[-1]) == (4096, 4096, 43)


def test_a_merged_weight_is_checked_even_where_every_rank_holds_it_whole() -> None:
    """fp8.py validate_block_quant_shapes looks at every piece of a merge; compressed-tensors leaves out the last."""
    narrow = {"intermediate_size": 12288 + 64}
    with pytest.raises(ConfigError, match=r"mlp.gate_up_proj: N 12352"):
        workload_of(shipped("qwen3_8b", **narrow), Parallel())
