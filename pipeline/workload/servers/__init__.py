"""What a server does with a layer's linears: its flags here, and one module of rules for each server."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class MoeRunner(Enum):
    """SGLang's moe_runner_backend; auto and deep_gemm are vLLM's too."""

    auto = "auto"
    deep_gemm = "deep_gemm"
    triton = "triton"
    cutlass = "cutlass"
    marlin = "marlin"
    flashinfer_cutlass = "flashinfer_cutlass"
    flashinfer_cutedsl = "flashinfer_cutedsl"
    flashinfer_trtllm = "flashinfer_trtllm"
    flashinfer_trtllm_routed = "flashinfer_trtllm_routed"
    flashinfer_mxfp4 = "flashinfer_mxfp4"


class DenseBackend(Enum):
    """SGLang's fp8_gemm_backend."""

    auto = "auto"
    deep_gemm = "deep_gemm"
    triton = "triton"
    cutlass = "cutlass"
    flashinfer_trtllm = "flashinfer_trtllm"
    flashinfer_cutlass = "flashinfer_cutlass"
    flashinfer_cutedsl = "flashinfer_cutedsl"
    flashinfer_deepgemm = "flashinfer_deepgemm"


class AttentionBackend(Enum):
    """SGLang's prefill attention backend; auto is the model's own."""

    auto = "auto"
    fa3 = "fa3"
    fa4 = "fa4"
    flashinfer = "flashinfer"
    flashmla = "flashmla"
    trtllm_mla = "trtllm_mla"
    triton = "triton"
    dsa = "dsa"


class DeepEpMode(Enum):
    """deepep_mode: which dispatch serves prefill and decode."""

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


class PdRole(Enum):
    """SGLang's disaggregation_mode."""

    none = "none"
    """One server for both."""
    prefill = "prefill"
    decode = "decode"


class Warmup(Enum):
    """VLLM_DEEP_GEMM_WARMUP: what vLLM launches at start, for comparison."""

    relax = "relax"
    full = "full"
    skip = "skip"


@dataclass(kw_only=True, slots=True)
class Server:
    """The server and those of its flags that change shapes, kernels or buffers."""

    name: str = ""
    """Which server's rules."""
    version: str = ""
    """Its version: rules that changed are chosen by it."""
    args: str | None = None
    """discovery=server: further arguments of the server, as they would be typed; they have the last word."""
    python: str | None = None
    """discovery=server: the Python that has the server; None means this one."""
    moe_runner_backend: MoeRunner = MoeRunner.auto
    """--moe-runner-backend (SGLang), --moe-backend (vLLM)."""
    fp8_gemm_backend: DenseBackend = DenseBackend.auto
    """--fp8-gemm-backend (SGLang)."""
    attention_backend: AttentionBackend = AttentionBackend.auto
    """--prefill-attention-backend (SGLang); decides whether kv_b_proj is a matrix product."""
    deepep_mode: DeepEpMode = DeepEpMode.auto
    """--deepep-mode; only with an all-to-all backend. vLLM: low_latency for deepep_low_latency."""
    shared_experts_fusion: FusedShared = FusedShared.auto
    """--disable-shared-experts-fusion or --enforce-shared-experts-fusion (SGLang)."""
    ep_num_redundant_experts: int = 0
    """--ep-num-redundant-experts: copies of experts over all ranks."""
    chunked_prefill_size: int | None = None
    """--chunked-prefill-size in tokens, before attention DP divides it; None means the server's default."""
    max_num_batched_tokens: int | None = None
    """--max-num-batched-tokens (vLLM); None means its default for the target's memory."""
    max_running_requests: int | None = None
    """--max-running-requests, --max-num-seqs (vLLM); None means the decode graph's largest batch."""
    cuda_graph_max_bs: int | None = None
    """--cuda-graph-max-bs; None means the server's default for the target's memory."""
    disable_cuda_graph: bool = False
    """--disable-cuda-graph."""
    fast_warmup: bool = False
    """SGLANG_JIT_DEEPGEMM_FAST_WARMUP: the server's shorter list of M."""
    warmup: Warmup = Warmup.relax
    """VLLM_DEEP_GEMM_WARMUP."""
    enable_deterministic_inference: bool = False
    """--enable-deterministic-inference: prefill absorbs kv_b_proj."""
    tokens_per_request: int = 1
    """Tokens one request brings to a decode step; more than 1 with speculative decoding."""
    mtp: bool = False
    """Whether the model's own draft layer runs (speculative decoding with MTP)."""
    enable_two_batch_overlap: bool = False
    """--enable-two-batch-overlap: prefill leaves SMs to the dispatcher."""
    enable_single_batch_overlap: bool = False
    """--enable-single-batch-overlap: shared experts leave SMs to the combine."""
    disaggregation_mode: PdRole = PdRole.none
    """--disaggregation-mode: what the server does of prefill and decode."""
    fp8_wo_a: bool | None = None
    """SGLANG_OPT_FP8_WO_A_GEMM (DeepSeek-V4); None means on from sm_100 on."""
    use_deepgemm_bmm: bool | None = None
    """SGLANG_USE_DEEPGEMM_BMM: absorbed kv_b_proj as masked grouped products; None means by the version."""
    use_deep_gemm: bool | None = None
    """VLLM_USE_DEEP_GEMM; None means unset."""
    moe_use_deep_gemm: bool | None = None
    """VLLM_MOE_USE_DEEP_GEMM; None means unset."""
    served_elsewhere: list[str] = field(default_factory=list[str])
    """Linears that a custom build gives to another kernel, by name (self_attn.wo_b)."""

    def problems(self) -> list[str]:
        """What is wrong with the flags, one line each."""
        counts = ("max_running_requests", "cuda_graph_max_bs", "tokens_per_request", "max_num_batched_tokens")
        found = [
            f"server.{name} must be at least 1, got {value}"
            for name in counts
            if (value := getattr(self, name)) is not None and value < 1
        ]
        if self.ep_num_redundant_experts < 0:
            found.append(f"server.ep_num_redundant_experts must be at least 0, got {self.ep_num_redundant_experts}")
        if self.name not in KNOWN_SERVERS:
            found.append(f"server.name {self.name!r} has no rules here; known: {', '.join(KNOWN_SERVERS)}")
        if self.version and release(self.version) is None:
            found.append(f"server.version {self.version!r} is not a version; write it as 0.5.23")
        return found


def release(version: str) -> tuple[int, int, int] | None:
    """0.21.1rc1.dev339 as (0, 21, 1): a build before a release counts as the release; None when it is no version."""
    numbers: list[int] = []
    for part in version.split("+")[0].split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return (numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 0) if len(numbers) >= 2 else None


KNOWN_SERVERS = ("sglang", "vllm")
