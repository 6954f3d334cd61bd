"""Which linears DeepGEMM serves, and why it does not serve the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pipeline.servers.sglang.flags import DenseBackend
from pipeline.servers.shared.problems import Kernel
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import DEEP_GEMM, deepseek, kernels_of, shipped, workload_of
from tests.servers.sglang.layouts import TP8


def test_kv_up_is_a_gemm_where_eager_prefill_does_not_absorb_it() -> None:
    workload = workload_of(deepseek(), TP8)
    (kv_up,) = [problem for problem in workload.problems if "self_attn.kv_b_proj" in problem.linears]
    assert (kv_up.n, kv_up.k) == (4096, 512)
    assert "MHA" in kv_up.rules[0]


@pytest.mark.parametrize(
    ("parallel", "flags", "reason"),
    [
        (Parallel(tp=8, attn_cp=2), {}, "context parallel"),
        (TP8, {"enable_deterministic_inference": True}, "deterministic"),
    ],
    ids=["context parallel", "deterministic"],
)
def test_kv_up_is_absorbed_by_prefill_under_these(parallel: Parallel, flags: dict[str, Any], reason: str) -> None:
    workload = workload_of(deepseek(), parallel, **flags)
    assert not any("self_attn.kv_b_proj" in problem.linears for problem in workload.problems)
    (entry,) = [entry for entry in workload.not_deepgemm if entry.layer.startswith("self_attn.kv_b_proj")]
    assert reason in entry.reason


def reason_of(n: int, k: int, *, block: tuple[int, int] | None = (128, 128), gpu: str = "h200", **flags: Any) -> str:
    quantization = {"quant_method": "fp8", "weight_block_size": list(block)} if block else None
    workload = workload_of(deepseek(quantization_config=quantization), Parallel(), gpu=gpu, **flags)
    return workload.rules.reason(replace(workload.pipeline_ranks[0].linears[0], parts=(n,), k=k)) or ""


@pytest.mark.parametrize(
    ("block", "gpu", "flags", "on_deepgemm"),
    [
        ((128, 128), "h200", {}, True),
        (None, "h200", {}, False),
        ((64, 64), "h200", {}, False),
        ((32, 32), "h200", {}, True),
        ((32, 32), "b200", {}, False),
        ((32, 32), "b200", {"fp8_gemm_backend": DenseBackend.deep_gemm}, True),
        ((128, 128), "h200", {"fp8_gemm_backend": DenseBackend.triton}, False),
        ((128, 128), "h200", {"fp8_gemm_backend": DenseBackend.flashinfer_deepgemm}, True),
    ],
)
def test_scale_blocks_and_the_backend_decide_whether_a_linear_is_deepgemms(
    block: tuple[int, int] | None, gpu: str, flags: dict[str, Any], on_deepgemm: bool
) -> None:
    assert (reason_of(2112, 7168, block=block, gpu=gpu, **flags) == "") is on_deepgemm


@pytest.mark.parametrize(
    ("n", "k", "reason"), [(2112, 7168, ""), (64, 128, ""), (2080, 7168, "N 2080"), (2112, 7168 + 64, "K 7232")]
)
def test_a_shard_is_for_deepgemm_by_the_multiples_of_its_sides(n: int, k: int, reason: str) -> None:
    assert reason in reason_of(n, k)
    assert bool(reason) is bool(reason_of(n, k))


def test_a_replicated_shard_that_deepgemm_refuses_is_listed_with_the_size() -> None:
    workload = workload_of(deepseek(qk_rope_head_dim=32), Parallel())
    (entry,) = [entry for entry in workload.not_deepgemm if "fused_qkv_a" in entry.layer]
    assert "N 2080 is not a multiple of 64" in entry.reason


@pytest.mark.parametrize(
    ("dtype", "is_served"), [("bfloat16", True), (None, True), ("float16", False), ("float32", False)]
)
def test_dense_products_of_a_half_precision_checkpoint_stay_with_triton(dtype: str | None, is_served: bool) -> None:
    model = deepseek()
    model.config = {**model.config, "dtype": dtype}
    workload = workload_of(model, TP8, **DEEP_GEMM)
    assert (Kernel.DENSE in kernels_of(workload)) == is_served
    assert kernels_of(workload) >= {Kernel.MASKED, Kernel.CONTIGUOUS}, "the experts are cast before they are dispatched"


@pytest.mark.parametrize(("interleaved", "reason"), [(True, "fused with the bf16 weights_proj"), (False, "")])
def test_the_indexers_key_is_fused_where_its_positions_are_interleaved(interleaved: bool, reason: str) -> None:
    workload = workload_of(shipped("glm5", indexer_rope_interleave=interleaved), TP8)
    (key,) = [linear for linear in workload.pipeline_ranks[0].linears if linear.name == "self_attn.indexer.wk"]
    assert (workload.rules.reason(key) or "")[: len(reason)] == reason
    assert bool(reason) is (workload.rules.reason(key) is not None)
