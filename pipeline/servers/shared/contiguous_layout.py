"""DeepGEMM's contiguous layout of grouped rows: each expert's rows begin at an aligned row."""

from __future__ import annotations

# deep_gemm.get_mk_alignment_for_contiguous_layout(); the discovery worker asks the library again.
ALIGNMENT = 128


def contiguous_rows(num_routes: int, num_groups: int) -> int:
    """Rows that hold every route.

    Source: SGLang 0.5.23 layers/moe/moe_runner/deep_gemm.py _get_compact_all_tokens.
    """
    first = min(num_routes, num_groups)
    return ALIGNMENT * (first + (num_routes - first) // ALIGNMENT)
