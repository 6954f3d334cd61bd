"""Reference kernels: plain torch on the CPU in fp32, exact enough to be the oracle of the CUDA kernels."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from pipeline.buffers.layer_plans import SCALE_BLOCK
from pipeline.engine.errors import HostError
from pipeline.engine.host import available_bytes
from pipeline.kernels.allocation_meter import AllocationMeter
from pipeline.kernels.protocol import Cache, Quantized

FP8_E4M3_MAX = 448.0  # largest finite float8_e4m3fn
RMS_EPSILON = 1e-6
# A block of zeros would divide by zero; the servers' quantisation kernels floor its scale the same way.
LEAST_BLOCK_MAX = 1e-4

P = ParamSpec("P")
T = TypeVar("T")


def kernel(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a method as a kernel: what it allocates is its own."""

    @wraps(function)
    def launch(*args: P.args, **kwargs: P.kwargs) -> T:
        self: Any = args[0]
        with self.own_temporaries():
            return function(*args, **kwargs)

    return launch


@dataclass(slots=True)
class ReferenceKernels:
    """Kernels in plain torch; each takes its temporaries from torch's allocator."""

    name: str = "reference"
    workspaces: dict[str, int] = field(default_factory=dict[str, int])
    """No library here takes memory of its own."""
    _thread: threading.local = field(default_factory=threading.local)
    """`meter`: the one of the stage that this thread runs; stages run in threads side by side."""

    def free_bytes(self) -> int:
        """Memory that can be had without swapping."""
        return available_bytes()

    def allocate(self, num_bytes: int) -> Tensor:
        """Uninitialised bytes; pages that nothing touches cost nothing."""
        try:
            return torch.empty(num_bytes, dtype=torch.uint8)
        except RuntimeError as error:
            free = available_bytes()
            raise HostError(
                f"out of memory: the arena needs {num_bytes} bytes, {free} are free; lower server.cuda_graph_max_bs"
            ) from error

    def peak_bytes(self) -> int | None:
        """Not measured: torch's CPU allocator keeps no counters."""
        return None

    def use_cache(self, warm_cache: Path) -> None:
        """The reference has no kernels to load."""

    def num_compiled(self) -> int | None:
        """The reference compiles nothing."""
        return None

    @contextlib.contextmanager
    def meter(self) -> Generator[AllocationMeter]:
        """Count a stage's allocations, its kernels' own temporaries excepted."""
        with AllocationMeter() as meter:
            self._thread.meter = meter
            try:
                yield meter
            finally:
                self._thread.meter = None

    @contextlib.contextmanager
    def own_temporaries(self) -> Generator[None]:
        """What is allocated inside belongs to a kernel."""
        meter: AllocationMeter | None = getattr(self._thread, "meter", None)
        if meter is None:
            yield
            return
        meter.inside_kernel += 1
        try:
            yield
        finally:
            meter.inside_kernel -= 1

    @kernel
    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, out_TD: Tensor) -> None:
        x = x_TD.float()
        out_TD.copy_(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + RMS_EPSILON) * weight_D.float())

    @kernel
    def quantize_fp8(self, x_TK: Tensor, out_TK: Tensor, out_scale: Tensor, *, group_rows: int | None = None) -> None:
        blocks = x_TK.float().unflatten(-1, (-1, SCALE_BLOCK))
        scale = blocks.abs().amax(-1).clamp(min=LEAST_BLOCK_MAX) / FP8_E4M3_MAX
        out_scale.copy_(scale)
        out_TK.copy_((blocks / scale.unsqueeze(-1)).flatten(-2))

    @kernel
    def gemm_fp8(self, x_TK: Quantized, w_NK: Quantized, out_TN: Tensor) -> None:
        out_TN.copy_(dequantize_rows(*x_TK) @ dequantize_blocks(*w_NK).T)

    @kernel
    def grouped_gemm_masked(
        self, x_GMK: Quantized, w_GNK: Quantized, masked_m_G: Tensor, expected_m: int, out_GMN: Tensor
    ) -> None:
        """`expected_m` is not used: it steers a GPU kernel's choice of tile."""
        weight = _weights_of_groups(w_GNK)
        for group, rows in enumerate(masked_m_G.tolist()):
            if rows:
                x = dequantize_rows(x_GMK[0][group, :rows], x_GMK[1][group, :rows])
                out_GMN[group, :rows].copy_(x @ weight(group).T)

    @kernel
    def grouped_gemm_contiguous(self, x_MK: Quantized, w_GNK: Quantized, group_M: Tensor, out_MN: Tensor) -> None:
        weight = _weights_of_groups(w_GNK)
        for group in group_M.unique().tolist():
            if group >= 0:
                rows = (group_M == group).nonzero().squeeze(1)
                x = dequantize_rows(x_MK[0].view(torch.uint8)[rows].view(x_MK[0].dtype), x_MK[1][rows])
                out_MN.index_copy_(0, rows, (x @ weight(group).T).to(out_MN.dtype))

    @kernel
    def silu_and_mul(self, gate_up_TN: Tensor, out_TK: Tensor) -> None:
        gate, up = gate_up_TN.float().chunk(2, dim=-1)
        out_TK.copy_(torch.nn.functional.silu(gate) * up)

    @kernel
    def attention(self, q_BHD: Tensor, cache: Cache, scale: float, out_BHV: Tensor) -> None:
        scores_BHS = torch.einsum("bhd,bsd->bhs", q_BHD.float(), cache.k_BSD.float()) * scale
        cached_S = torch.arange(cache.k_BSD.shape[1])
        absent_BS = cached_S.unsqueeze(0) >= cache.seq_lens_B.unsqueeze(1)
        weights_BHS = scores_BHS.masked_fill(absent_BS.unsqueeze(1), float("-inf")).softmax(-1)
        out_BHV.copy_(torch.einsum("bhs,bsv->bhv", weights_BHS, cache.v_BSV.float()))

    @kernel
    def route(self, x_TD: Tensor, gate_ED: Tensor, out_ids_TR: Tensor, out_weights_TR: Tensor) -> None:
        scores_TE = (x_TD.float() @ gate_ED.float().T).sigmoid()
        top_TR, ids_TR = scores_TE.topk(out_ids_TR.shape[1], dim=-1)
        out_ids_TR.copy_(ids_TR)
        out_weights_TR.copy_(top_TR / top_TR.sum(-1, keepdim=True))

    @kernel
    def dispatch_contiguous(
        self, ids_TR: Tensor, num_groups: int, alignment: int, out_group_M: Tensor, out_row_TR: Tensor
    ) -> None:
        counts = torch.bincount(ids_TR.flatten(), minlength=num_groups)
        padded = (counts + alignment - 1) // alignment * alignment
        starts = padded.cumsum(0) - padded
        out_row_TR.copy_(_place_of_each(ids_TR) + starts[ids_TR])
        out_group_M.fill_(-1)
        out_group_M[out_row_TR.flatten()] = ids_TR.flatten().to(out_group_M.dtype)

    @kernel
    def dispatch_masked(self, ids_TR: Tensor, rows_per_group: int, out_masked_m_G: Tensor, out_row_TR: Tensor) -> None:
        out_row_TR.copy_(_place_of_each(ids_TR) + ids_TR * rows_per_group)
        out_masked_m_G.copy_(torch.bincount(ids_TR.flatten(), minlength=out_masked_m_G.shape[0]))

    @kernel
    def scatter(self, x_TK: Quantized, row_TR: Tensor, out_MK: Quantized, *, group_rows: int | None = None) -> None:
        for x, out in zip(x_TK, out_MK, strict=True):
            # FP8 has no index_copy; its bytes do.
            source, target = (t.view(torch.uint8) if t.element_size() == 1 else t for t in (x, out))
            for route in range(row_TR.shape[1]):
                target.index_copy_(0, row_TR[:, route], source)

    @kernel
    def combine(self, y_MD: Tensor, row_TR: Tensor, weights_TR: Tensor, out_TD: Tensor) -> None:
        total = torch.zeros(out_TD.shape)
        for route in range(row_TR.shape[1]):
            total += weights_TR[:, route : route + 1] * y_MD[row_TR[:, route]].float()
        out_TD.copy_(total)

    def replay(self, run: Callable[[], object]) -> bool:
        """There are no graphs on the CPU."""
        return False


def dequantize_rows(x_TK: Tensor, scale: Tensor) -> Tensor:
    """fp32 values of an activation with one scale for each 1x128."""
    return (x_TK.float().unflatten(-1, (-1, SCALE_BLOCK)) * scale.unsqueeze(-1)).flatten(-2)


def dequantize_blocks(w_NK: Tensor, scale: Tensor) -> Tensor:
    """fp32 values of a weight [N, K] with one scale for each 128x128; the last block of N may be cut."""
    rows = scale.repeat_interleave(SCALE_BLOCK, dim=0)[: w_NK.shape[0]]
    return dequantize_rows(w_NK, rows)


def _weights_of_groups(w_GNK: Quantized) -> Callable[[int], Tensor]:
    data, scale = w_GNK
    if data.stride(0) == scale.stride(0) == 0 and data.shape[0] > 1:
        shared = dequantize_blocks(data[0], scale[0])
        return lambda group: shared
    return lambda group: dequantize_blocks(data[group], scale[group])


def _place_of_each(ids_TR: Tensor) -> Tensor:
    """For every route, how many routes before it chose the same expert."""
    flat = ids_TR.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat)
    first_of_group = (counts.cumsum(0) - counts).repeat_interleave(counts)
    place = torch.empty_like(flat)
    place[order] = torch.arange(flat.numel()) - first_of_group
    return place.view(ids_TR.shape)
