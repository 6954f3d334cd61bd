"""How to launch: one protocol, one file for each device. Outputs come last, are named `out_`, and are filled in place.

Tensor names end in their dimensions: T tokens, D hidden, N and K of a weight, G groups or experts, M rows of one
group, H heads, S cached tokens, E routed experts, R routes of a token (top-k), B requests; FP8 operands come as
(data, scale), one fp32 scale for each 1x128 of an activation and each 128x128 of a weight.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from pipeline.engine.runner import Measured

Quantized = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Cache:
    """The cached rows of each request; all heads share them."""

    k_BSD: Tensor
    v_BSV: Tensor
    seq_lens_B: Tensor
    """How many of the S rows each request has."""


class Kernels(Protocol):
    """What a dummy forward launches."""

    name: str
    workspaces: dict[str, int]

    def free_bytes(self) -> int:
        """Memory that one allocation could take."""
        ...

    def allocate(self, num_bytes: int) -> Tensor:
        """The arena's memory [num_bytes] uint8; HostError when it cannot be had."""
        ...

    def peak_bytes(self) -> int | None:
        """Most device memory that was held at once in this process; None where that is not measured."""
        ...

    def use_cache(self, warm_cache: Path) -> None:
        """Take kernels from this published cache; it is never written to."""
        ...

    def num_compiled(self) -> int | None:
        """Kernels that the published cache lacked and that were compiled here; None where nothing compiles."""
        ...

    def meter(self) -> AbstractContextManager[Measured]:
        """Counts the bytes that a stage allocates while it is entered."""
        ...

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, out_TD: Tensor) -> None:
        """Divide each row by its root mean square, times the weight."""
        ...

    def quantize_fp8(self, x_TK: Tensor, out_TK: Tensor, out_scale: Tensor, *, group_rows: int | None = None) -> None:
        """Scale each 1x128 block to the FP8 range.

        Each implementation has its own layout of the scales in `out_scale`. `group_rows`: rows of one expert's block,
        when the rows are those of a masked product.
        """
        ...

    def gemm_fp8(self, x_TK: Quantized, w_NK: Quantized, out_TN: Tensor) -> None:
        """out = x @ w.T, scales applied."""
        ...

    def grouped_gemm_masked(
        self, x_GMK: Quantized, w_GNK: Quantized, masked_m_G: Tensor, expected_m: int, out_GMN: Tensor
    ) -> None:
        """out[g, :masked_m[g]] = x[g, :masked_m[g]] @ w[g].T; other rows are left alone."""
        ...

    def grouped_gemm_contiguous(self, x_MK: Quantized, w_GNK: Quantized, group_M: Tensor, out_MN: Tensor) -> None:
        """out[m] = x[m] @ w[group[m]].T; rows whose group is -1 are left alone."""
        ...

    def silu_and_mul(self, gate_up_TN: Tensor, out_TK: Tensor) -> None:
        """silu of the first half times the second half, along the last dimension."""
        ...

    def attention(self, q_BHD: Tensor, cache: Cache, scale: float, out_BHV: Tensor) -> None:
        """Every head of a request attends to the first seq_lens[b] cached rows of that request."""
        ...

    def route(self, x_TD: Tensor, gate_ED: Tensor, out_ids_TR: Tensor, out_weights_TR: Tensor) -> None:
        """The R experts of each token with the largest sigmoid scores, and their normalised weights."""
        ...

    def dispatch_contiguous(
        self, ids_TR: Tensor, num_groups: int, alignment: int, out_group_M: Tensor, out_row_TR: Tensor
    ) -> None:
        """Give every route a row so that each expert's rows begin at a multiple of `alignment`; unused rows: -1."""
        ...

    def dispatch_masked(self, ids_TR: Tensor, rows_per_group: int, out_masked_m_G: Tensor, out_row_TR: Tensor) -> None:
        """Give every route a row inside its expert's block of `rows_per_group` rows, and count each block's rows."""
        ...

    def scatter(self, x_TK: Quantized, row_TR: Tensor, out_MK: Quantized, *, group_rows: int | None = None) -> None:
        """out[row[t, r]] = x[t], data and scales; other rows are left alone."""
        ...

    def combine(self, y_MD: Tensor, row_TR: Tensor, weights_TR: Tensor, out_TD: Tensor) -> None:
        """out[t] = sum over r of weights[t, r] * y[row[t, r]]."""
        ...

    def replay(self, run: Callable[[], object]) -> bool:
        """Capture what `run` launches in a CUDA graph and replay it; False where there are no graphs."""
        ...
