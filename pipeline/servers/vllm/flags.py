"""vLLM's options that change shapes, kernels or buffers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from pipeline.servers.shared.flags import ServerFlags, flag


class MoeBackend(Enum):
    """Which kernels run the routed experts."""

    auto = "auto"
    deep_gemm = "deep_gemm"
    triton = "triton"
    cutlass = "cutlass"
    marlin = "marlin"
    flashinfer_cutlass = "flashinfer_cutlass"
    flashinfer_cutedsl = "flashinfer_cutedsl"
    flashinfer_trtllm = "flashinfer_trtllm"


class DeepEpDispatch(Enum):
    """Which of DeepEP's two dispatches: vLLM names them as two all-to-all backends."""

    auto = "auto"
    """deepep_high_throughput."""
    normal = "normal"
    """deepep_high_throughput."""
    low_latency = "low_latency"
    """deepep_low_latency."""


class Warmup(Enum):
    """What vLLM launches at start, for comparison."""

    relax = "relax"
    full = "full"
    skip = "skip"


@dataclass(kw_only=True)
class VllmFlags(ServerFlags):
    """server=vllm."""

    name: str = "vllm"
    """Which server."""
    moe_runner_backend: MoeBackend = flag(MoeBackend.auto, "--moe-backend")
    """Which kernels run the routed experts."""
    deepep_mode: DeepEpDispatch = flag(DeepEpDispatch.auto)
    """Which of DeepEP's two dispatches; part of --all2all-backend."""
    ep_num_redundant_experts: int = flag(0, "--eplb-config.num_redundant_experts")
    """Copies of experts over all ranks; vLLM takes them with --enable-eplb only."""
    max_num_batched_tokens: int | None = flag(None, "--max-num-batched-tokens")
    """Most tokens of one step; None means the server's default for the target's memory."""
    max_running_requests: int | None = flag(None, "--max-num-seqs")
    """Most requests at a time; None means the server's default for the target's memory."""
    cuda_graph_max_bs: int | None = flag(None, "--max-cudagraph-capture-size")
    """Largest batch that is captured in CUDA graphs; None means the server's own choice."""
    disable_cuda_graph: bool = flag(False, "--enforce-eager")
    """Whether nothing is captured in CUDA graphs."""
    warmup: Warmup = flag(Warmup.relax, variable="VLLM_DEEP_GEMM_WARMUP")
    """What the server launches at its own start."""
    use_deep_gemm: bool | None = flag(None, variable="VLLM_USE_DEEP_GEMM")
    """Whether DeepGEMM serves FP8 products; None means unset."""
    moe_use_deep_gemm: bool | None = flag(None, variable="VLLM_MOE_USE_DEEP_GEMM")
    """Whether DeepGEMM serves experts; None means unset."""

    at_least_one: ClassVar[tuple[str, ...]] = (
        *ServerFlags.at_least_one,
        "max_running_requests",
        "cuda_graph_max_bs",
        "max_num_batched_tokens",
    )
    at_least_zero: ClassVar[tuple[str, ...]] = ("ep_num_redundant_experts",)
