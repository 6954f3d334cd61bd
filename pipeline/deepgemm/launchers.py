"""How each kernel is launched at M rows, with the operands that a server hands over; imported in a child process only.

Every launcher makes its operands once, at the largest M, and slices them. Tensor names: see pipeline/kernels; H heads,
S cached or key tokens, B requests, R output columns of one einsum group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

SCALE_BLOCK = 128
# One page of the indexer's cache: 64 keys of 128 bytes and an fp32 scale each.
INDEXER_PAGE_TOKENS = 64
INDEXER_KEY_BYTES = 132
INDEXER_MAX_PAGES = 16

Launch = Callable[[int], object]


class NotInLibrary(Exception):
    """This deep_gemm does not have the function; the message names it."""


def library(name: str) -> Callable[..., Any]:
    """A function of the installed deep_gemm."""
    import deep_gemm

    found = getattr(deep_gemm, name, None)
    if found is None:
        raise NotInLibrary(f"the installed deep_gemm has no {name}")
    return found


def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Device memory that nobody reads."""
    return torch.empty(shape, device="cuda", dtype=dtype)


def fp8(*shape: int) -> torch.Tensor:
    """FP8 data."""
    return empty(*shape, dtype=torch.float8_e4m3fn)


def operand(*shape: int, block: int = SCALE_BLOCK) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations with one scale for each 1 x `block`.

    Scales are row-major fp32, as the servers' own sweeps hand them over: DeepGEMM then launches its layout kernel too,
    so that one is discovered with the GEMM.
    """
    *outer, columns = shape
    return fp8(*shape), empty(*outer, columns // block)


def weight(*shape: int, block: int = SCALE_BLOCK) -> tuple[torch.Tensor, torch.Tensor]:
    """A weight with one scale for each `block` x `block`."""
    *outer, rows, columns = shape
    return fp8(*shape), empty(*outer, -(-rows // block), columns // block)


def packed_operand(rows: int, columns: int, *, block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations or a weight whose UE8M0 scales (1 x `block`) are packed four to an int32, rows contiguous."""
    aligned_rows = -(-rows // 4) * 4
    words = columns // block // 4
    scale = torch.empty_strided((rows, words), (1, aligned_rows), device="cuda", dtype=torch.int32)
    return fp8(rows, columns), scale


def first_rows(pair: tuple[torch.Tensor, torch.Tensor], m: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first m rows of data and scales."""
    return pair[0][:m], pair[1][:m]


def dense(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """fp8_gemm_nt; option compiled_dims as vLLM's copy of the library has it, block 32 for 32x32 scale blocks."""
    launch, block = library("fp8_gemm_nt"), options.get("block", SCALE_BLOCK)
    x_MK, w_NK, out_MN = operand(largest, k, block=block), weight(n, k, block=block), empty(largest, n, dtype=BF16)
    more: dict[str, Any] = {} if block == SCALE_BLOCK else {"recipe": (1, block, block)}
    if "compiled_dims" in options:
        more["compiled_dims"] = options["compiled_dims"]
    return lambda m: launch(first_rows(x_MK, m), w_NK, out_MN[:m], **more)


def mxfp8(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """fp8_fp4_gemm_nt with 1x32 UE8M0 scales on both sides."""
    launch = library("fp8_fp4_gemm_nt")
    w_NK, out_MN = packed_operand(n, k, block=32), empty(largest, n, dtype=BF16)

    def run(m: int) -> None:
        x_MK = packed_operand(m, k, block=32)
        launch(x_MK, w_NK, out_MN[:m], recipe_a=(1, 32), recipe_b=(1, 32), disable_ue8m0_cast=True)

    return run


def masked(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """fp8_m_grouped_gemm_nt_masked at expected_m."""
    launch = library("fp8_m_grouped_gemm_nt_masked")
    x_GMK, w_GNK = operand(groups, largest, k), weight(groups, n, k)
    out_GMN, masked_m_G = empty(groups, largest, n, dtype=BF16), empty(groups, dtype=torch.int32)
    return lambda m: launch(x_GMK, w_GNK, out_GMN, masked_m_G, m)


def contiguous(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """m_grouped_fp8_gemm_nt_contiguous; option psum: the last row of each group instead of the group of each row."""
    launch = library("m_grouped_fp8_gemm_nt_contiguous")
    x_MK, w_GNK, out_MN = operand(largest, k), weight(groups, n, k), empty(largest, n, dtype=BF16)
    if options.get("psum"):
        ends_G = empty(groups, dtype=torch.int32)
        return lambda m: launch(first_rows(x_MK, m), w_GNK, out_MN[:m], ends_G, use_psum_layout=True)
    group_M = empty(largest, dtype=torch.int32)
    return lambda m: launch(first_rows(x_MK, m), w_GNK, out_MN[:m], group_M[:m])


def bf16_masked(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """m_grouped_bf16_gemm_nt_masked at expected_m."""
    launch = library("m_grouped_bf16_gemm_nt_masked")
    x_GMK, w_GNK = empty(groups, largest, k, dtype=BF16), empty(groups, n, k, dtype=BF16)
    out_GMN, masked_m_G = empty(groups, largest, n, dtype=BF16), empty(groups, dtype=torch.int32)
    return lambda m: launch(x_GMK, w_GNK, out_GMN, masked_m_G, m)


def bf16_contiguous(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """m_grouped_bf16_gemm_nt_contiguous."""
    launch = library("m_grouped_bf16_gemm_nt_contiguous")
    x_MK, w_GNK = empty(largest, k, dtype=BF16), empty(groups, n, k, dtype=BF16)
    out_MN, group_M = empty(largest, n, dtype=BF16), empty(largest, dtype=torch.int32)
    return lambda m: launch(x_MK[:m], w_GNK, out_MN[:m], group_M[:m])


def fp4_weight(groups: int, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """FP4 experts, two to a byte, with packed UE8M0 scales of 1x32."""
    words, aligned = k // 32 // 4, -(-n // 4) * 4
    stride = (words * aligned, 1, aligned)
    scale = torch.empty_strided((groups, n, words), stride, device="cuda", dtype=torch.int32)
    return empty(groups, n, k // 2, dtype=torch.int8), scale


def fp4_masked(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """fp8_m_grouped_gemm_nt_masked of FP8 rows and FP4 experts."""
    launch = library("fp8_m_grouped_gemm_nt_masked")
    x_GMK, w_GNK = operand(groups, largest, k), fp4_weight(groups, n, k)
    out_GMN, masked_m_G = empty(groups, largest, n, dtype=BF16), empty(groups, dtype=torch.int32)
    return lambda m: launch(x_GMK, w_GNK, out_GMN, masked_m_G, m, **FP4_RECIPE)


def fp4_contiguous(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """m_grouped_fp8_gemm_nt_contiguous of FP8 rows and FP4 experts."""
    launch = library("m_grouped_fp8_gemm_nt_contiguous")
    x_MK, w_GNK = operand(largest, k), fp4_weight(groups, n, k)
    out_MN, group_M = empty(largest, n, dtype=BF16), empty(largest, dtype=torch.int32)
    return lambda m: launch(first_rows(x_MK, m), w_GNK, out_MN[:m], group_M[:m], **FP4_RECIPE)


def mqa_logits(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """fp8_mqa_logits of n heads of k over as many keys as there are queries; option compressed: packed results."""
    launch, is_compressed = library("fp8_mqa_logits"), bool(options.get("compressed"))
    q_MHK, keys, weights_MH = fp8(largest, n, k), (fp8(largest, k), empty(largest)), empty(largest, n)
    ends_M = empty(largest, dtype=torch.int32)

    def run(m: int) -> None:
        more = {"max_seqlen_k": m} if is_compressed else {}
        launch(q_MHK[:m], first_rows(keys, m), weights_MH[:m], ends_M[:m], ends_M[:m], clean_logits=False, **more)

    return run


def paged_mqa_logits(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """fp8_paged_mqa_logits of n heads of k; option next_n: query tokens of one request."""
    launch, next_n = library("fp8_paged_mqa_logits"), options.get("next_n", 1)
    q_BTHK, weights_MH = fp8(largest, next_n, n, k), empty(largest * next_n, n)
    pages = empty(INDEXER_MAX_PAGES, INDEXER_PAGE_TOKENS, 1, INDEXER_KEY_BYTES, dtype=torch.uint8)
    lens_BT = empty(largest, next_n, dtype=torch.int32)
    table_BP = empty(largest, INDEXER_MAX_PAGES, dtype=torch.int32)
    schedule = empty(num_sms() + 1, 2, dtype=torch.int32)
    longest = INDEXER_MAX_PAGES * INDEXER_PAGE_TOKENS
    return lambda m: launch(
        q_BTHK[:m], pages, weights_MH[: m * next_n], lens_BT[:m], table_BP[:m], schedule, longest, clean_logits=False
    )


def paged_mqa_metadata(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """get_paged_mqa_logits_metadata for M requests."""
    launch, lens_B1 = library("get_paged_mqa_logits_metadata"), empty(largest, 1, dtype=torch.int32)
    return lambda m: launch(lens_B1[:m], INDEXER_PAGE_TOKENS, num_sms())


def einsum(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """fp8_einsum bhr,hdr->bhd of `groups` weights [n, k]."""
    launch = library("fp8_einsum")
    x_MGK, w_GNK, out_MGN = operand(largest, groups, k), weight(groups, n, k), empty(largest, groups, n, dtype=BF16)
    recipe = (1, SCALE_BLOCK, SCALE_BLOCK)
    return lambda m: launch("bhr,hdr->bhd", first_rows(x_MGK, m), w_GNK, out_MGN[:m], recipe=recipe)


def hc_prenorm(n: int, k: int, groups: int, largest: int, options: Mapping[str, Any]) -> Launch:
    """tf32_hc_prenorm_gemm; option num_splits."""
    launch, splits = library("tf32_hc_prenorm_gemm"), options["num_splits"]
    x_MK, w_NK = empty(largest, k, dtype=BF16), empty(n, k)

    def run(m: int) -> None:
        # The library wants the partial results packed.
        launch(x_MK[:m], w_NK, empty(splits, m, n), empty(splits, m), num_splits=splits)

    return run


def num_sms() -> int:
    """SMs that deep_gemm uses at this moment."""
    return library("get_num_sms")()


BF16 = torch.bfloat16
FP4_RECIPE = {"recipe_a": (1, 128), "recipe_b": (1, 32)}
LAUNCHERS: dict[str, Callable[[int, int, int, int, Mapping[str, Any]], Launch]] = {
    "GEMM_NT_F8F8BF16": dense,
    "GEMM_NT_F8F8BF16_BLOCK32": dense,
    "GEMM_NT_MXFP8": mxfp8,
    "GROUPED_GEMM_NT_F8F8BF16_MASKED": masked,
    "GROUPED_GEMM_NT_F8F8BF16_CONTIG": contiguous,
    "GROUPED_GEMM_NT_BF16_MASKED": bf16_masked,
    "GROUPED_GEMM_NT_BF16_CONTIG": bf16_contiguous,
    "GROUPED_GEMM_NT_F8F4BF16_MASKED": fp4_masked,
    "GROUPED_GEMM_NT_F8F4BF16_CONTIG": fp4_contiguous,
    "FP8_MQA_LOGITS": mqa_logits,
    "FP8_PAGED_MQA_LOGITS": paged_mqa_logits,
    "PAGED_MQA_LOGITS_METADATA": paged_mqa_metadata,
    "FP8_EINSUM": einsum,
    "TF32_HC_PRENORM_GEMM": hc_prenorm,
}
