"""SGLang 0.5.23: which kernel each linear reaches, with how many rows, and why the others do not.

Paths in the rules are inside the package sglang/srt of that version.
"""

from __future__ import annotations

from pipeline.virtual_gpu.targets import Target
from pipeline.workload.families.deepseek import FUSING_ARCHITECTURE, DeepseekFacts
from pipeline.workload.linears import Linear, Role
from pipeline.workload.parallel import A2A, Parallel
from pipeline.workload.problems import Kernel, MList, NotDeepGemm
from pipeline.workload.servers import DeepEpMode, FusedShared, MoeRunner, Server

# layers/deep_gemm_wrapper/compile_utils.py update_deep_gemm_config.
DEFAULT_M_MAX = 16384
UNCHUNKED_M_MAX = 65536
LARGEST_M_MAX = 131072
FAST_WARMUP_DENSE_UP_TO = 1024
FAST_WARMUP_MAX = 32768
# deep_gemm.get_mk_alignment_for_contiguous_layout(); the discovery worker asks the library again.
CONTIGUOUS_ALIGNMENT = 128
# layers/quantization/fp8_utils.py _deepgemm_block_fp8_supported.
DEEPGEMM_N_MULTIPLE = 64
DEEPGEMM_K_MULTIPLE = 128
DEEPGEMM_BLOCK = (128, 128)
# layers/quantization/fp8.py: auto picks DeepGEMM for the experts behind these.
A2A_ON_DEEPGEMM = (A2A.deepep, A2A.mooncake, A2A.nixl)
# models/deepseek_v2.py shared_experts_fusion_disable_reason.
A2A_WITHOUT_FUSION = (A2A.deepep, A2A.deepep_v2, A2A.mooncake, A2A.nixl, A2A.mori)
FUSING_EXPERT_COUNT = 256


def m_list(server: Server, chunk: int) -> MList:
    """Every M that the server's own sweep would visit (compile_utils.py update_deep_gemm_config)."""
    if server.fast_warmup:
        return _fast_m_list(DEFAULT_M_MAX if chunk < 1 else min(chunk, FAST_WARMUP_MAX))
    m_max = DEFAULT_M_MAX
    if chunk < 1:
        m_max = UNCHUNKED_M_MAX
    elif chunk > 8192:
        m_max = 2 * chunk
    return MList((range(1, min(m_max, LARGEST_M_MAX) + 1),))


def contiguous_rows(num_routes: int, num_groups: int) -> int:
    """Rows that hold every route when each expert's rows begin at an aligned row.

    Source: layers/moe/moe_runner/deep_gemm.py _get_compact_all_tokens.
    """
    first = min(num_routes, num_groups)
    return CONTIGUOUS_ALIGNMENT * (first + (num_routes - first) // CONTIGUOUS_ALIGNMENT)


def contiguous_m_list(every_m: MList, *, chunk: int, top_k: int, groups: int) -> MList:
    """Rows of the contiguous kernels: the server's list, and what one chunk's routes reach when that is more.

    The server filters its list of M to aligned values, although M counts routes here: with a small chunk it visits
    too few. Past DEFAULT_M_MAX no measured shape selects another kernel (docs/kernels.md), so the list ends there.
    """
    reached = min(contiguous_rows(max(chunk, 1) * top_k, groups), DEFAULT_M_MAX)
    largest = max(every_m.largest, reached)
    beyond = range(every_m.largest + 1, largest + 1)
    aligned = [m for m in every_m if m % CONTIGUOUS_ALIGNMENT == 0]
    return MList.of(aligned + [m for m in beyond if m % CONTIGUOUS_ALIGNMENT == 0])


def shared_experts_not_fused(facts: DeepseekFacts, server: Server, parallel: Parallel) -> str | None:
    """Why the shared experts stay apart, or None when they become extra groups of the routed ones."""
    source = "models/deepseek_v2.py shared_experts_fusion_disable_reason"
    if facts.num_shared == 0:
        return "the model has no shared experts"
    if server.shared_experts_fusion is FusedShared.off:
        return "server.shared_experts_fusion=off"
    if parallel.moe_a2a_backend in A2A_WITHOUT_FUSION and server.shared_experts_fusion is not FusedShared.enforced:
        return f"not fused behind {parallel.moe_a2a_backend.name} ({source})"
    if facts.architecture != FUSING_ARCHITECTURE:
        return f"{facts.architecture} is not {FUSING_ARCHITECTURE} ({source})"
    if facts.num_experts != FUSING_EXPERT_COUNT:
        return f"{facts.num_experts} experts, fusion wants {FUSING_EXPERT_COUNT} ({source})"
    if facts.num_shared != 1:
        return f"{facts.num_shared} shared experts, fusion wants 1 ({source})"
    if parallel.effective_ep != 1:
        return f"expert parallel size {parallel.effective_ep} is not 1 ({source})"
    return None


def routes_per_token(facts: DeepseekFacts, server: Server, parallel: Parallel) -> int:
    """Experts that one token visits; fused shared experts are visited by all."""
    fused = shared_experts_not_fused(facts, server, parallel) is None
    return facts.top_k + (facts.num_shared if fused else 0)


def shared_experts_tp(parallel: Parallel) -> int:
    """Ranks that share the shared experts: one behind an all-to-all backend, where each rank holds them whole."""
    return 1 if parallel.moe_a2a_backend.is_used else parallel.tp


def experts_not_on_deepgemm(server: Server, parallel: Parallel, target: Target) -> str | None:
    """Why the experts' runner is not DeepGEMM under these flags, or None when it is."""
    source = "layers/quantization/fp8.py is_deepgemm_moe_runner_backend_enabled"
    runner = server.moe_runner_backend
    if runner is MoeRunner.deep_gemm or (runner is MoeRunner.auto and parallel.moe_a2a_backend in A2A_ON_DEEPGEMM):
        return None
    if runner is not MoeRunner.auto:
        return f"server.moe_runner_backend={runner.name} ({source})"
    served_by = "Triton fused MoE" if target.major_minor < (10, 0) else "FlashInfer trtllm-gen MoE or Triton"
    return (
        f"moe_runner_backend=auto with moe_a2a_backend={parallel.moe_a2a_backend.name} runs {served_by} ({source}); "
        "set server.moe_runner_backend=deep_gemm, or an all-to-all backend such as deepep"
    )


def expert_kernels(server: Server, parallel: Parallel) -> list[tuple[Kernel, str]]:
    """The grouped kernels of the DeepGEMM runner and the rule that needs each (layers/moe/moe_runner/deep_gemm.py)."""
    contiguous, masked = Kernel.CONTIGUOUS, Kernel.MASKED
    if not parallel.moe_a2a_backend.is_used:
        return [
            (masked, "standard dispatch, masked layout: moe_runner/deep_gemm.py _should_use_masked_standard_layout"),
            (contiguous, "standard dispatch, compact layout: moe_runner/deep_gemm.py _get_compact_all_tokens"),
        ]
    name = parallel.moe_a2a_backend.name
    found: list[tuple[Kernel, str]] = []
    if server.deepep_mode is not DeepEpMode.low_latency:
        found.append((contiguous, f"{name} normal dispatch (prefill): token_dispatcher/deepep.py"))
    if server.deepep_mode is not DeepEpMode.normal:
        found.append((masked, f"{name} low-latency dispatch (decode): token_dispatcher/deepep.py"))
    return found


def kv_up_not_a_gemm(server: Server, parallel: Parallel) -> str | None:
    """Why kv_b_proj never runs as a matrix product, or None when some prefill runs it so.

    Decode always absorbs it. Prefill runs it on MHA_ONE_SHOT and MHA_CHUNKED_KV, which eager prefill takes.
    """
    source = "models/deepseek_common/attention_backend_handler.py"
    if parallel.attn_cp > 1:
        return f"context parallel prefill absorbs kv_b_proj ({source})"
    if server.enable_deterministic_inference:
        return f"deterministic inference absorbs kv_b_proj ({source})"
    return None


def dense_not_on_deepgemm(linear: Linear, block: tuple[int, int] | None) -> str | None:
    """Why a quantised linear is served by another kernel, or None (fp8_utils.py _deepgemm_block_fp8_supported)."""
    source = "layers/quantization/fp8_utils.py _deepgemm_block_fp8_supported"
    if block != DEEPGEMM_BLOCK:
        return f"weights are not FP8 with {DEEPGEMM_BLOCK[0]}x{DEEPGEMM_BLOCK[1]} scale blocks ({source})"
    if linear.n % DEEPGEMM_N_MULTIPLE != 0:
        return f"N {linear.n} is not a multiple of {DEEPGEMM_N_MULTIPLE}, Triton serves it ({source})"
    if linear.k % DEEPGEMM_K_MULTIPLE != 0:
        return f"K {linear.k} is not a multiple of {DEEPGEMM_K_MULTIPLE}, Triton serves it ({source})"
    return None


RULES = {
    Role.ATTENTION: "layers/quantization/fp8_utils.py dispatch_w8a8_block_fp8_linear",
    Role.KV_UP: "models/deepseek_common/attention_backend_handler.py: MHA_ONE_SHOT and MHA_CHUNKED_KV prefill",
    Role.DENSE_MLP: "layers/quantization/fp8_utils.py dispatch_w8a8_block_fp8_linear; layer < first_k_dense_replace",
    Role.SHARED_EXPERTS: "models/deepseek_v2.py: shared experts apart from the routed ones",
}


def _fast_m_list(largest: int) -> MList:
    ranges = [range(1, min(FAST_WARMUP_DENSE_UP_TO, largest) + 1)]
    start, step = FAST_WARMUP_DENSE_UP_TO, 2
    while start < largest:
        ranges.append(range(start, min(2 * start, largest + 1), step))
        start, step = 2 * start, 2 * step
    values = sorted({m for part in ranges for m in part} | {largest})
    return MList.of(values)


def never_on_deepgemm(facts: DeepseekFacts) -> list[NotDeepGemm]:
    """Matrix products of every rank that hold no block-FP8 weight, whatever the flags."""
    found = [
        NotDeepGemm("model.embed_tokens", "a look-up, first pipeline stage only"),
        NotDeepGemm(
            "self_attn absorbed kv_b_proj (w_kc, w_vc)",
            "bf16 batched product: deepseek_weight_loader.py dequantises it",
        ),
        NotDeepGemm("lm_head", "bf16, not quantised, last pipeline stage only"),
    ]
    if any(facts.is_moe(layer) for layer in range(facts.num_layers)):
        found.insert(1, NotDeepGemm("mlp.gate", "bf16 router: models/deepseek_v2.py MoEGate"))
    return found
