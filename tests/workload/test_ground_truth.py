"""SGLang 0.5.23 itself is the oracle: shapes that it printed on a virtual H200, rank 0, one short prefill and decode.

Weights were dummies and CUDA graphs off. Contiguous kernels are compared without, because so small a batch never
reached them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.workload.parallel import A2A, Parallel
from pipeline.workload.problems import Kernel
from tests.workload.recipes import DEEP_GEMM, deepseek, keys_of, workload_of

DENSE, MASKED = Kernel.DENSE.value, Kernel.MASKED.value
# The recorded model: DeepSeek-V3's config.json with 2 layers of which 1 dense.
TWO_LAYERS = {"num_hidden_layers": 2, "first_k_dense_replace": 1}


@dataclass(frozen=True)
class Recorded:
    """One case of the file; `complete` is False where the server stopped before its experts ran."""

    name: str
    parallel: Parallel
    dense: set[tuple[int, int]]
    masked: set[tuple[int, int, int]] = field(default_factory=set)
    flags: dict[str, Any] = field(default_factory=dict)
    complete: bool = True


ATTENTION_TP8 = {(2112, 7168), (3072, 1536), (4096, 512), (7168, 2048)}
DENSE_TP8 = {(4608, 7168), (7168, 2304)}
CASES = [
    Recorded(
        "dsv3-tp1-dg",
        Parallel(),
        {(2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (36864, 7168), (7168, 18432)},
        {(4096, 7168, 257), (7168, 2048, 257)},
        DEEP_GEMM,
    ),
    Recorded("dsv3-tp8", Parallel(tp=8), ATTENTION_TP8 | DENSE_TP8),
    Recorded(
        "dsv3-tp8-dg",
        Parallel(tp=8),
        ATTENTION_TP8 | DENSE_TP8,
        {(512, 7168, 257), (7168, 256, 257)},
        DEEP_GEMM,
    ),
    Recorded(
        "dsv3-tp8-deepep",
        Parallel(tp=8, moe_a2a_backend=A2A.deepep),
        ATTENTION_TP8 | DENSE_TP8 | {(4096, 7168)},
        complete=False,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_rules_derive_what_the_server_printed(case: Recorded) -> None:
    derived = keys_of(workload_of(deepseek(**TWO_LAYERS), case.parallel, **case.flags))
    printed = {(DENSE, n, k, 1) for n, k in case.dense} | {(MASKED, n, k, groups) for n, k, groups in case.masked}
    compared = (DENSE, MASKED) if case.complete else (DENSE,)
    assert {key for key in derived if key[0] in compared} == printed


@pytest.mark.parametrize("name", ["qwen30-tp1-dg", "qwen30-tp4", "qwen8-tp1"])
def test_the_rules_derive_what_the_server_printed_for_qwen3(name: str) -> None:
    pytest.skip("family not supported yet")


def test_the_shard_that_the_server_refused_is_refused_here() -> None:
    # qwen30-tp4: output_size of gate and up's weight = 192 is not divisible by block_n = 128, i.e. 768 over 4 ranks.
    narrow = deepseek(**TWO_LAYERS, moe_intermediate_size=768)
    with pytest.raises(ConfigError, match=r"N 192 of one shard must be a multiple of the scale block 128"):
        workload_of(narrow, Parallel(tp=4))
