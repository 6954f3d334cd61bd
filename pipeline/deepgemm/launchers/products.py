"""Matrix products: dense, grouped by experts, by heads and by residual streams.

Every function makes its operands once, at the largest M, and returns what launches it at M rows.
"""

from __future__ import annotations

from typing import Any

from pipeline.deepgemm.launchers.operands import (
    BF16,
    SCALE_BLOCK,
    Launch,
    Options,
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


def dense(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """fp8_gemm_nt; option compiled_dims as vLLM's copy of the library has it, block 32 for 32x32 scale blocks."""
    launch = library("fp8_gemm_nt")
    block = options.get("block", SCALE_BLOCK)
    x_MK = operand(largest, k, block=block)
    w_NK = weight(n, k, block=block)
    out_MN = empty(largest, n, dtype=BF16)
    more: dict[str, Any] = {} if block == SCALE_BLOCK else {"recipe": (1, block, block)}
    if "compiled_dims" in options:
        more["compiled_dims"] = options["compiled_dims"]
    return lambda m: launch(first_rows(x_MK, m), w_NK, out_MN[:m], **more)


def mxfp8(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """fp8_fp4_gemm_nt with 1x32 UE8M0 scales on both sides."""
    launch = library("fp8_fp4_gemm_nt")
    w_NK = packed_operand(n, k, block=32)
    out_MN = empty(largest, n, dtype=BF16)

    def run(m: int) -> None:
        x_MK = packed_operand(m, k, block=32)
        launch(x_MK, w_NK, out_MN[:m], recipe_a=(1, 32), recipe_b=(1, 32), disable_ue8m0_cast=True)

    return run


def masked(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """fp8_m_grouped_gemm_nt_masked at expected_m."""
    launch = library("fp8_m_grouped_gemm_nt_masked", "m_grouped_fp8_gemm_nt_masked")
    x_GMK = operand(groups, largest, k)
    w_GNK = weight(groups, n, k)
    out_GMN = empty(groups, largest, n, dtype=BF16)
    masked_m_G = int32(groups)
    return lambda m: launch(x_GMK, w_GNK, out_GMN, masked_m_G, m)


def contiguous(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """m_grouped_fp8_gemm_nt_contiguous; option psum: the last row of each group instead of the group of each row."""
    launch = library("m_grouped_fp8_gemm_nt_contiguous")
    x_MK = operand(largest, k)
    w_GNK = weight(groups, n, k)
    out_MN = empty(largest, n, dtype=BF16)
    if options.get("psum"):
        ends_G = int32(groups)
        return lambda m: launch(first_rows(x_MK, m), w_GNK, out_MN[:m], ends_G, use_psum_layout=True)
    group_M = int32(largest)
    return lambda m: launch(first_rows(x_MK, m), w_GNK, out_MN[:m], group_M[:m])


def bf16_dense(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """bf16_gemm_nn under deterministic algorithms, as SGLang's batch-invariant mm calls it: the weight transposed."""
    launch = library("bf16_gemm_nn")
    deterministic = library("use_deterministic_algorithms")
    x_MK = empty(largest, k, dtype=BF16)
    w_KN = empty(n, k, dtype=BF16).T
    out_MN = empty(largest, n, dtype=BF16)

    def run(m: int) -> None:
        deterministic(True)
        launch(x_MK[:m], w_KN, out_MN[:m])
        deterministic(False)

    return run


def bf16_masked(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """m_grouped_bf16_gemm_nt_masked at expected_m."""
    launch = library("m_grouped_bf16_gemm_nt_masked")
    x_GMK = empty(groups, largest, k, dtype=BF16)
    w_GNK = empty(groups, n, k, dtype=BF16)
    out_GMN = empty(groups, largest, n, dtype=BF16)
    masked_m_G = int32(groups)
    return lambda m: launch(x_GMK, w_GNK, out_GMN, masked_m_G, m)


def bf16_contiguous(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """m_grouped_bf16_gemm_nt_contiguous."""
    launch = library("m_grouped_bf16_gemm_nt_contiguous")
    x_MK = empty(largest, k, dtype=BF16)
    w_GNK = empty(groups, n, k, dtype=BF16)
    out_MN = empty(largest, n, dtype=BF16)
    group_M = int32(largest)
    return lambda m: launch(x_MK[:m], w_GNK, out_MN[:m], group_M[:m])


def fp4_masked(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """fp8_m_grouped_gemm_nt_masked of FP8 rows and FP4 experts."""
    launch = library("fp8_m_grouped_gemm_nt_masked", "m_grouped_fp8_fp4_gemm_nt_masked")
    x_GMK = operand(groups, largest, k)
    w_GNK = fp4_weight(groups, n, k)
    out_GMN = empty(groups, largest, n, dtype=BF16)
    masked_m_G = int32(groups)
    return lambda m: launch(x_GMK, w_GNK, out_GMN, masked_m_G, m, **FP4_RECIPE)


def fp4_contiguous(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """m_grouped_fp8_gemm_nt_contiguous of FP8 rows and FP4 experts."""
    launch = library("m_grouped_fp8_gemm_nt_contiguous")
    x_MK = operand(largest, k)
    w_GNK = fp4_weight(groups, n, k)
    out_MN = empty(largest, n, dtype=BF16)
    group_M = int32(largest)
    return lambda m: launch(first_rows(x_MK, m), w_GNK, out_MN[:m], group_M[:m], **FP4_RECIPE)


def einsum(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """fp8_einsum bhr,hdr->bhd of `groups` weights [n, k]."""
    launch = library("fp8_einsum")
    x_MGK = operand(largest, groups, k)
    w_GNK = weight(groups, n, k)
    out_MGN = empty(largest, groups, n, dtype=BF16)
    recipe = (1, SCALE_BLOCK, SCALE_BLOCK)
    return lambda m: launch("bhr,hdr->bhd", first_rows(x_MGK, m), w_GNK, out_MGN[:m], recipe=recipe)


def hc_prenorm(n: int, k: int, groups: int, largest: int, options: Options) -> Launch:
    """tf32_hc_prenorm_gemm; option num_splits."""
    launch = library("tf32_hc_prenorm_gemm")
    splits = options["num_splits"]
    x_MK = empty(largest, k, dtype=BF16)
    w_NK = empty(n, k)

    def run(m: int) -> None:
        # The library wants the partial results packed.
        launch(x_MK[:m], w_NK, empty(splits, m, n), empty(splits, m), num_splits=splits)

    return run
