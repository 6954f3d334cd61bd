"""Kernels on a CUDA GPU: DeepGEMM's GEMMs, FlashInfer's RMSNorm, Triton between them; nothing allocates."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor

from pipeline.buffers.layer_plans import SCALE_BLOCK
from pipeline.engine.errors import HostError
from pipeline.kernels import triton_kernels
from pipeline.kernels.protocol import Cache, Quantized

# Launching a Triton kernel means more than calling a Python function; a checker cannot follow it.
small: Any = triton_kernels
RMS_EPSILON = 1e-6
BLOCK = 1024
# What was seen to work together; named when an import fails.
WORKING_PAIRS = (
    "torch 2.14.1 with sgl-deep-gemm 0.2.3.post2 and flashinfer-python 0.7.2, "
    "torch 2.11 with sgl-deep-gemm 0.1.2 and flashinfer-python 0.6.18"
)


@dataclass(slots=True)
class CudaMeter:
    """The bytes that torch's allocator handed out since this meter was made, library workspaces excepted."""

    kernels: CudaKernels
    start_bytes: int

    @property
    def allocated_bytes(self) -> int | None:
        """Bytes so far; the allocator counts for ever, so a freed temporary shows as well."""
        return self.kernels.allocated_by_stages() - self.start_bytes


@dataclass(slots=True)
class CudaKernels:
    """Kernels on the current CUDA device."""

    cache_dir: Path
    """DG_JIT_CACHE_DIR of this process."""
    name: str = "cuda"
    workspaces: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes that a library takes for itself and for which its API takes no buffer, by library."""
    deep_gemm: Any = field(default_factory=lambda: imported("deep_gemm"))
    norm: Any = field(default_factory=lambda: imported("flashinfer.norm"))

    def allocated_by_stages(self) -> int:
        """Bytes ever handed out, without the libraries' workspaces."""
        return allocated_ever() - sum(self.workspaces.values())

    @contextlib.contextmanager
    def workspace_of(self, library: str) -> Generator[None]:
        """What is allocated inside is the library's own: made once, kept, and listed by name and size."""
        before = allocated_ever()
        yield
        if (taken := allocated_ever() - before) > 0:
            self.workspaces[library] = self.workspaces.get(library, 0) + taken

    def free_bytes(self) -> int:
        """Device memory that is free now."""
        return torch.cuda.mem_get_info()[0]

    def allocate(self, num_bytes: int) -> Tensor:
        """One block of device memory."""
        try:
            return torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            free, total = torch.cuda.mem_get_info()
            raise HostError(
                f"out of memory: the arena needs {num_bytes} bytes, {free} of {total} are free; is the GPU shared? "
                "lower server.cuda_graph_max_bs or free the GPU"
            ) from error

    def peak_bytes(self) -> int | None:
        """What torch's allocator held at most."""
        return torch.cuda.max_memory_allocated()

    def use_cache(self, warm_cache: Path) -> None:
        """Link every published entry into this process's own cache directory, where what is missing is compiled."""
        for entry in sorted((warm_cache / "cache").glob("*")):
            link = self.cache_dir / "cache" / entry.name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(entry.resolve(), target_is_directory=True)

    def num_compiled(self) -> int | None:
        """Entries that are no links."""
        return sum(not entry.is_symlink() for entry in (self.cache_dir / "cache").glob("*"))

    @contextlib.contextmanager
    def meter(self) -> Generator[CudaMeter]:
        """Count what torch's allocator hands out."""
        yield CudaMeter(self, self.allocated_by_stages())

    def rms_norm(self, x_TD: Tensor, weight_D: Tensor, out_TD: Tensor) -> None:
        self.norm.rmsnorm(x_TD, weight_D, RMS_EPSILON, out_TD)

    def quantize_fp8(self, x_TK: Tensor, out_TK: Tensor, out_scale: Tensor, *, group_rows: int | None = None) -> None:
        """The scale is kept MN-major (triton_kernels.py)."""
        rows, k = x_TK.shape
        grid = (rows, k // SCALE_BLOCK)
        small.quantize_fp8[grid](x_TK, out_TK, out_scale, group_rows or rows, K=k, BLOCK=SCALE_BLOCK)

    def gemm_fp8(self, x_TK: Quantized, w_NK: Quantized, out_TN: Tensor) -> None:
        with self.workspace_of("DeepGEMM: its cuBLASLt workspace, at the first GEMM"):
            self.deep_gemm.fp8_gemm_nt((x_TK[0], mn_major(x_TK[1])), w_NK, out_TN)

    def grouped_gemm_masked(
        self, x_GMK: Quantized, w_GNK: Quantized, masked_m_G: Tensor, expected_m: int, out_GMN: Tensor
    ) -> None:
        x = x_GMK[0], mn_major(x_GMK[1])
        self.deep_gemm.fp8_m_grouped_gemm_nt_masked(x, w_GNK, out_GMN, masked_m_G, expected_m)

    def grouped_gemm_contiguous(self, x_MK: Quantized, w_GNK: Quantized, group_M: Tensor, out_MN: Tensor) -> None:
        x = x_MK[0], mn_major(x_MK[1])
        self.deep_gemm.m_grouped_fp8_gemm_nt_contiguous(x, w_GNK, out_MN, group_M)

    def silu_and_mul(self, gate_up_TN: Tensor, out_TK: Tensor) -> None:
        rows, k = out_TK.shape
        small.silu_and_mul[(rows, triton.cdiv(k, BLOCK))](gate_up_TN, out_TK, K=k, BLOCK=BLOCK)

    def attention(self, q_BHD: Tensor, cache: Cache, scale: float, out_BHV: Tensor) -> None:
        """A stand-in in Triton: no FlashInfer attention module is on the path of a default Hopper server."""
        batch, heads, dim = q_BHD.shape
        small.attention[(batch, heads)](
            q_BHD, cache.k_BSD, cache.v_BSV, cache.seq_lens_B, out_BHV, scale, q_BHD.stride(0), out_BHV.stride(0),
            H=heads, S=cache.k_BSD.shape[1], D=dim, D2=triton.next_power_of_2(dim), V=cache.v_BSV.shape[2],
        )  # fmt: skip

    def route(self, x_TD: Tensor, gate_ED: Tensor, out_ids_TR: Tensor, out_weights_TR: Tensor) -> None:
        experts, dim = gate_ED.shape
        padded = triton.next_power_of_2(experts)
        small.route[(x_TD.shape[0],)](
            x_TD, gate_ED, out_ids_TR, out_weights_TR, D=dim, E=experts, E2=padded, R=out_ids_TR.shape[1], STEP=32
        )

    def dispatch_contiguous(
        self, ids_TR: Tensor, num_groups: int, alignment: int, out_group_M: Tensor, out_row_TR: Tensor
    ) -> None:
        rows = out_group_M.shape[0]
        small.fill_int32[(triton.cdiv(rows, BLOCK),)](out_group_M, -1, rows, BLOCK=BLOCK)
        small.dispatch[(num_groups,)](
            ids_TR, out_row_TR, out_group_M, out_group_M, 0, ids_TR.numel(),
            ALIGNED=True, ROUTES=BLOCK, ALIGNMENT=alignment,
        )  # fmt: skip

    def dispatch_masked(self, ids_TR: Tensor, rows_per_group: int, out_masked_m_G: Tensor, out_row_TR: Tensor) -> None:
        small.dispatch[(out_masked_m_G.shape[0],)](
            ids_TR, out_row_TR, out_masked_m_G, out_masked_m_G, rows_per_group, ids_TR.numel(),
            ALIGNED=False, ROUTES=BLOCK, ALIGNMENT=1,
        )  # fmt: skip

    def scatter(self, x_TK: Quantized, row_TR: Tensor, out_MK: Quantized, *, group_rows: int | None = None) -> None:
        tokens, k = x_TK[0].shape
        routes = row_TR.numel()
        per_token = row_TR.shape[1]
        blocks = k // SCALE_BLOCK
        grid = (routes, triton.cdiv(k, BLOCK))
        data = x_TK[0].view(torch.uint8)
        out = out_MK[0].view(torch.uint8)
        small.scatter_rows[grid](data, row_TR, out, K=k, R=per_token, BLOCK=BLOCK)
        small.scatter_scales[(routes,)](
            x_TK[1], row_TR, out_MK[1], tokens, group_rows or out_MK[0].shape[0],
            B=blocks, B2=triton.next_power_of_2(blocks), R=per_token,
        )  # fmt: skip

    def combine(self, y_MD: Tensor, row_TR: Tensor, weights_TR: Tensor, out_TD: Tensor) -> None:
        tokens, dim = out_TD.shape
        grid = (tokens, triton.cdiv(dim, BLOCK))
        small.combine[grid](y_MD, row_TR, weights_TR, out_TD, D=dim, R=row_TR.shape[1], BLOCK=BLOCK)

    def replay(self, run: Callable[[], object]) -> bool:
        """Capture and replay once, over the same buffers."""
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with self.workspace_of("torch: random generator state of each CUDA graph"), torch.cuda.graph(graph):
            run()
        graph.replay()
        torch.cuda.synchronize()
        return True


def mn_major(scale: Tensor) -> Tensor:
    """The scale [..., T, B] whose memory holds B rows of T: a view, which DeepGEMM reads without a layout kernel."""
    *outer, rows, blocks = scale.shape
    return scale.view(*outer, blocks, rows).mT


def allocated_ever() -> int:
    """Bytes that torch's caching allocator ever handed out on this device."""
    return torch.cuda.memory_stats().get("allocated_bytes.all.allocated", 0)


def imported(name: str) -> Any:
    """A library that wants a GPU; HostError names what is missing and which versions work together."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise HostError(
            f"{name} cannot be imported with torch {torch.__version__}: {error}; seen to work: {WORKING_PAIRS}"
        ) from error
