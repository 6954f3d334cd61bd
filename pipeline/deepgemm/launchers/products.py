"""Matrix products: dense, grouped by experts, by heads and by residual streams.

Every function makes its operands once, at the largest M, and returns what launches it at M rows.
"""

from __future__ import annotations

from typing import Any

from pipeline.deepgemm.launch_spec import LaunchSpec
from pipeline.deepgemm.launchers.operands import (
    BF16,
    SCALE_BLOCK,
    Launch,
    empty,
    first_rows,
    fp4_weight,
    int32,
    library,
    operand,
    packed_operand,
    weight,
)

FP4_RECIPE = {"recipe_a": (1, 128), "recipe_b": (1, 32)}


def dense(spec: LaunchSpec) -> Launch:
    """fp8_gemm_nt; option compiled_dims as vLLM's copy of the library has it, block 32 for 32x32 scale blocks."""
    launch = library("fp8_gemm_nt")
    block = spec.options.get("block", SCALE_BLOCK)
    x_MK = operand(spec.max_m, spec.k, block=block)
    w_NK = weight(spec.n, spec.k, block=block)
    out_MN = empty(spec.max_m, spec.n, dtype=BF16)
    more: dict[str, Any] = {} if block == SCALE_BLOCK else {"recipe": (1, block, block)}
    if "compiled_dims" in spec.options:
        more["compiled_dims"] = spec.options["compiled_dims"]
    return lambda m: launch(first_rows(x_MK, m), w_NK, out_MN[:m], **more)


def mxfp8(spec: LaunchSpec) -> Launch:
    """fp8_fp4_gemm_nt with 1x32 UE8M0 scales on both sides."""
    launch = library("fp8_fp4_gemm_nt")
    w_NK = packed_operand(spec.n, spec.k, block=32)
    out_MN = empty(spec.max_m, spec.n, dtype=BF16)

    def run(m: int) -> None:
        x_MK = packed_operand(m, spec.k, block=32)
        launch(x_MK, w_NK, out_MN[:m], recipe_a=(1, 32), recipe_b=(1, 32), disable_ue8m0_cast=True)

    return run


def masked(spec: LaunchSpec) -> Launch:
    """fp8_m_grouped_gemm_nt_masked at expected_m."""
    launch = library("fp8_m_grouped_gemm_nt_masked", "m_grouped_fp8_gemm_nt_masked")
    x_GMK = operand(spec.groups, spec.max_m, spec.k)
    w_GNK = weight(spec.groups, spec.n, spec.k)
    out_GMN = empty(spec.groups, spec.max_m, spec.n, dtype=BF16)
    masked_m_G = int32(spec.groups)
    return lambda m: launch(x_GMK, w_GNK, out_GMN, masked_m_G, m)


def contiguous(spec: LaunchSpec) -> Launch:
    """m_grouped_fp8_gemm_nt_contiguous; option psum: the last row of each group instead of the group of each row."""
    launch = library("m_grouped_fp8_gemm_nt_contiguous")
    x_MK = operand(spec.max_m, spec.k)
    w_GNK = weight(spec.groups, spec.n, spec.k)
    out_MN = empty(spec.max_m, spec.n, dtype=BF16)
    if spec.options.get("psum"):
        ends_G = int32(spec.groups)
        return lambda m: launch(first_rows(x_MK, m), w_GNK, out_MN[:m], ends_G, use_psum_layout=True)
    group_M = int32(spec.max_m)
    return lambda m: launch(first_rows(x_MK, m), w_GNK, out_MN[:m], group_M[:m])


def bf16_dense(spec: LaunchSpec) -> Launch:
    """bf16_gemm_nn under deterministic algorithms, as SGLang's batch-invariant mm calls it: the weight transposed."""
    launch = library("bf16_gemm_nn")
    deterministic = library("use_deterministic_algorithms")
    x_MK = empty(spec.max_m, spec.k, dtype=BF16)
    w_KN = empty(spec.n, spec.k, dtype=BF16).T
    out_MN = empty(spec.max_m, spec.n, dtype=BF16)

    def run(m: int) -> None:
        deterministic(True)
        launch(x_MK[:m], w_KN, out_MN[:m])
        deterministic(False)

    return run


def bf16_masked(spec: LaunchSpec) -> Launch:
    """m_grouped_bf16_gemm_nt_masked at expected_m."""
    launch = library("m_grouped_bf16_gemm_nt_masked")
    x_GMK = empty(spec.groups, spec.max_m, spec.k, dtype=BF16)
    w_GNK = empty(spec.groups, spec.n, spec.k, dtype=BF16)
    out_GMN = empty(spec.groups, spec.max_m, spec.n, dtype=BF16)
    masked_m_G = int32(spec.groups)
    return lambda m: launch(x_GMK, w_GNK, out_GMN, masked_m_G, m)


def bf16_contiguous(spec: LaunchSpec) -> Launch:
    """m_grouped_bf16_gemm_nt_contiguous."""
    launch = library("m_grouped_bf16_gemm_nt_contiguous")
    x_MK = empty(spec.max_m, spec.k, dtype=BF16)
    w_GNK = empty(spec.groups, spec.n, spec.k, dtype=BF16)
    out_MN = empty(spec.max_m, spec.n, dtype=BF16)
    group_M = int32(spec.max_m)
    return lambda m: launch(x_MK[:m], w_GNK, out_MN[:m], group_M[:m])


def fp4_masked(spec: LaunchSpec) -> Launch:
    """fp8_m_grouped_gemm_nt_masked of FP8 rows and FP4 experts."""
    launch = library("fp8_m_grouped_gemm_nt_masked", "m_grouped_fp8_fp4_gemm_nt_masked")
    x_GMK = operand(spec.groups, spec.max_m, spec.k)
    w_GNK = fp4_weight(spec.groups, spec.n, spec.k)
    out_GMN = empty(spec.groups, spec.max_m, spec.n, dtype=BF16)
    masked_m_G = int32(spec.groups)
    return lambda m: launch(x_GMK, w_GNK, out_GMN, masked_m_G, m, **FP4_RECIPE)


def fp4_contiguous(spec: LaunchSpec) -> Launch:
    """m_grouped_fp8_gemm_nt_contiguous of FP8 rows and FP4 experts."""
    launch = library("m_grouped_fp8_gemm_nt_contiguous")
    x_MK = operand(spec.max_m, spec.k)
    w_GNK = fp4_weight(spec.groups, spec.n, spec.k)
    out_MN = empty(spec.max_m, spec.n, dtype=BF16)
    group_M = int32(spec.max_m)
    return lambda m: launch(first_rows(x_MK, m), w_GNK, out_MN[:m], group_M[:m], **FP4_RECIPE)


def einsum(spec: LaunchSpec) -> Launch:
    """fp8_einsum bhr,hdr->bhd of `groups` weights [n, k]."""
    launch = library("fp8_einsum")
    x_MGK = operand(spec.max_m, spec.groups, spec.k)
    w_GNK = weight(spec.groups, spec.n, spec.k)
    out_MGN = empty(spec.max_m, spec.groups, spec.n, dtype=BF16)
    recipe = (1, SCALE_BLOCK, SCALE_BLOCK)
    return lambda m: launch("bhr,hdr->bhd", first_rows(x_MGK, m), w_GNK, out_MGN[:m], recipe=recipe)


def hc_prenorm(spec: LaunchSpec) -> Launch:
    """tf32_hc_prenorm_gemm; option num_splits."""
    launch = library("tf32_hc_prenorm_gemm")
    splits = spec.options["num_splits"]
    x_MK = empty(spec.max_m, spec.k, dtype=BF16)
    w_NK = empty(spec.n, spec.k)

    def run(m: int) -> None:
        # The library wants the partial results packed.
        launch(x_MK[:m], w_NK, empty(splits, m, spec.n), empty(splits, m), num_splits=splits)

    return run
