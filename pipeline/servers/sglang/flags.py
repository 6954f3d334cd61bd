"""SGLang's options that change shapes, kernels or buffers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from pipeline.servers.shared.flags import ServerFlags, flag

# Both together are SGLang's way to run without CUDA graphs.
WITHOUT_GRAPHS = ("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled")


class MoeRunner(Enum):
    """Which kernels run the routed experts."""

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
    """Which kernels run FP8 linears."""

    auto = "auto"
    deep_gemm = "deep_gemm"
    triton = "triton"
    cutlass = "cutlass"
    flashinfer_trtllm = "flashinfer_trtllm"
    flashinfer_cutlass = "flashinfer_cutlass"
    flashinfer_cutedsl = "flashinfer_cutedsl"
    flashinfer_deepgemm = "flashinfer_deepgemm"


class AttentionBackend(Enum):
    """Which kernels run attention in prefill; auto is the model's own choice."""

    auto = "auto"
    fa3 = "fa3"
    fa4 = "fa4"
    flashinfer = "flashinfer"
    flashmla = "flashmla"
    trtllm_mla = "trtllm_mla"
    triton = "triton"
    dsa = "dsa"


class DeepEpMode(Enum):
    """Which dispatch serves prefill and decode."""

    auto = "auto"
    normal = "normal"
    low_latency = "low_latency"


class FusedShared(Enum):
    """Whether shared experts become extra routed experts."""

    auto = "auto"
    """The server's own rule."""
    off = "off"
    enforced = "enforced"


class PdRole(Enum):
    """What the server does of prefill and decode."""

    none = "none"
    """One server for both."""
    prefill = "prefill"
    decode = "decode"


@dataclass(kw_only=True)
class SglangFlags(ServerFlags):
    """server=sglang."""

    name: str = "sglang"
    """Which server."""
    moe_runner_backend: MoeRunner = flag(MoeRunner.auto, "--moe-runner-backend")
    """Which kernels run the routed experts."""
    fp8_gemm_backend: DenseBackend = flag(DenseBackend.auto, "--fp8-gemm-backend")
    """Which kernels run FP8 linears."""
    attention_backend: AttentionBackend = flag(AttentionBackend.auto, "--prefill-attention-backend")
    """Which kernels run attention in prefill; decides whether kv_b_proj is a matrix product."""
    deepep_mode: DeepEpMode = flag(DeepEpMode.auto, "--deepep-mode")
    """Which dispatch serves prefill and decode; only with an all-to-all backend."""
    shared_experts_fusion: FusedShared = flag(
        FusedShared.auto,
        {
            FusedShared.off: "--disable-shared-experts-fusion",
            FusedShared.enforced: "--enforce-shared-experts-fusion",
        },
    )
    """Whether shared experts become extra routed experts."""
    ep_num_redundant_experts: int = flag(0, "--ep-num-redundant-experts")
    """Copies of experts over all ranks."""
    chunked_prefill_size: int | None = flag(None, "--chunked-prefill-size")
    """Tokens of one prefill chunk, before attention DP divides it; None means the server's default."""
    max_running_requests: int | None = flag(None, "--max-running-requests")
    """Most requests at a time; None means the decode graph's largest batch."""
    cuda_graph_max_bs: int | None = flag(None, "--cuda-graph-max-bs-decode")
    """Largest batch of the decode graphs; None means the server's default for the target's memory."""
    disable_cuda_graph: bool = flag(False, WITHOUT_GRAPHS)
    """Whether nothing is captured in CUDA graphs."""
    fast_warmup: bool = flag(False, variable="SGLANG_JIT_DEEPGEMM_FAST_WARMUP")
    """Whether the server's own sweep visits its shorter list of M."""
    enable_deterministic_inference: bool = flag(False, "--enable-deterministic-inference")
    """Whether results do not depend on the batch; prefill then absorbs kv_b_proj."""
    enable_two_batch_overlap: bool = flag(False, "--enable-two-batch-overlap")
    """Whether prefill leaves SMs to the dispatcher."""
    enable_single_batch_overlap: bool = flag(False, "--enable-single-batch-overlap")
    """Whether shared experts leave SMs to the combine."""
    disaggregation_mode: PdRole = flag(PdRole.none, "--disaggregation-mode")
    """What the server does of prefill and decode."""
    fp8_wo_a: bool | None = flag(None, variable="SGLANG_OPT_FP8_WO_A_GEMM")
    """Whether DeepSeek-V4's wo_a runs in FP8; None means from sm_100 on."""
    use_deepgemm_bmm: bool | None = flag(None, variable="SGLANG_USE_DEEPGEMM_BMM")
    """Whether absorbed kv_b_proj runs as masked grouped products; None means by the version."""

    at_least_one: ClassVar[tuple[str, ...]] = (
        *ServerFlags.at_least_one,
        "max_running_requests",
        "cuda_graph_max_bs",
    )
    at_least_zero: ClassVar[tuple[str, ...]] = ("ep_num_redundant_experts",)

    def arguments(self) -> list[str]:
        """The server's own arguments for every flag that differs from its default, and for speculative decoding."""
        return super().arguments() + (self._speculation() if self.mtp else [])

    def _speculation(self) -> list[str]:
        """One draft step for each token of a request beyond the first; SGLang finds the model's own draft layer."""
        steps = max(1, self.tokens_per_request - 1)
        return [
            *("--speculative-algorithm", "EAGLE", "--speculative-num-steps", str(steps)),
            *("--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(steps + 1)),
        ]
