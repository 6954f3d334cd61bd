"""What a server does with a layer's linears: one file for each server, each rule with its source."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class MoeRunner(Enum):
    """SGLang's moe_runner_backend."""

    auto = "auto"
    deep_gemm = "deep_gemm"
    triton = "triton"
    cutlass = "cutlass"
    marlin = "marlin"
    flashinfer_cutlass = "flashinfer_cutlass"
    flashinfer_trtllm = "flashinfer_trtllm"
    flashinfer_mxfp4 = "flashinfer_mxfp4"


class DeepEpMode(Enum):
    """SGLang's deepep_mode: which dispatch serves prefill and decode."""

    auto = "auto"
    normal = "normal"
    low_latency = "low_latency"


class FusedShared(Enum):
    """Whether shared experts become extra routed experts."""

    auto = "auto"
    """The server's own rule."""
    off = "off"
    """--disable-shared-experts-fusion."""
    enforced = "enforced"
    """--enforce-shared-experts-fusion."""


@dataclass(kw_only=True, slots=True)
class Server:
    """The server and those of its flags that change shapes, kernels or buffers."""

    name: str = ""
    """Which server's rules."""
    version: str = ""
    """The version that the rules were read from."""
    moe_runner_backend: MoeRunner = MoeRunner.auto
    """--moe-runner-backend."""
    deepep_mode: DeepEpMode = DeepEpMode.auto
    """--deepep-mode; only with an all-to-all backend."""
    shared_experts_fusion: FusedShared = FusedShared.auto
    """--disable-shared-experts-fusion or --enforce-shared-experts-fusion."""
    chunked_prefill_size: int | None = None
    """--chunked-prefill-size in tokens, before attention DP divides it; None means the server's default."""
    max_running_requests: int | None = None
    """--max-running-requests; None means the decode graph's largest batch."""
    cuda_graph_max_bs: int | None = None
    """--cuda-graph-max-bs; None means the server's default for the target's memory."""
    disable_cuda_graph: bool = False
    """--disable-cuda-graph."""
    fast_warmup: bool = False
    """SGLANG_JIT_DEEPGEMM_FAST_WARMUP: the server's shorter list of M."""
    enable_deterministic_inference: bool = False
    """--enable-deterministic-inference: prefill absorbs kv_b_proj."""
    tokens_per_request: int = 1
    """Tokens one request brings to a decode step; more than 1 with speculative decoding."""

    def problems(self) -> list[str]:
        """What is wrong with the flags, one line each."""
        found = [
            f"server.{name} must be at least 1, got {value}"
            for name in ("max_running_requests", "cuda_graph_max_bs", "tokens_per_request")
            if (value := getattr(self, name)) is not None and value < 1
        ]
        if self.name not in KNOWN_SERVERS:
            found.append(f"server.name {self.name!r} has no rules here; known: {', '.join(KNOWN_SERVERS)}")
        return found


KNOWN_SERVERS = ("sglang",)
