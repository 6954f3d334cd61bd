"""vLLM: which quantised linears DeepGEMM serves, at which M, and why it does not serve the others.

Paths are inside the package vllm of 0.33.
"""

from __future__ import annotations

from pipeline.servers.rules import Use
from pipeline.servers.shared.problems import Kernel, MList
from pipeline.servers.vllm import warmup
from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.servers.vllm.schemes import scheme_of
from pipeline.servers.vllm.versions import Version
from pipeline.workload.linears import Linear, NotDeepGemm, Role
from pipeline.workload.scheme import PLAIN, Format, Scheme

BLOCK = (128, 128)
DENSE_DOWN = "mlp.down_proj"
K_MULTIPLE = 128
# scaled_mm/flashinfer.py: fewer rows than this go to FlashInfer's own kernel on sm_90.
FIRST_M_ON_SM90 = 32
# utils/deep_gemm.py _DEEPGEMM_BLACKWELL_EXCLUDED_MODEL_TYPES.
EXCLUDED_ON_BLACKWELL = ("qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe")


def reason(deployment: VllmDeployment, version: Version, linear: Linear) -> str | None:
    """Why another kernel serves the linear, or None."""
    facts = deployment.facts
    if linear.role is Role.INDEXER_KEY and version >= (0, 20, 0):
        return "fused with the bf16 weights_proj from 0.20 on (models/deepseek_v32/attention.py)"
    if linear.scheme.block != BLOCK:
        return _scheme_reason(deployment, linear.scheme)
    if _is_excluded(deployment, version):
        return f"DeepGEMM is off for {facts.model_type} on this architecture (utils/deep_gemm.py)"
    n_multiple = 128 if version < (0, 12, 0) else 64
    for side, size, multiple in (("N", linear.n, n_multiple), ("K", linear.k, K_MULTIPLE)):
        if size % multiple != 0:
            return f"{side} {size} is not a multiple of {multiple} (should_use_deepgemm_for_fp8_linear)"
    return None


def use(deployment: VllmDeployment, version: Version, linear: Linear, chunk: int) -> Use:
    """The dense product of a linear for every number of rows that a step of `chunk` tokens may bring."""
    first = FIRST_M_ON_SM90 if gives_small_m_to_flashinfer(deployment, version) else 1
    return Use(
        kernel=Kernel.DENSE,
        rule="kernels/linear/scaled_mm/deep_gemm.py DeepGemmFp8BlockScaledMMKernel",
        m=MList((range(first, chunk * linear.rows_per_token + 1),)),
        # The vendored library (from 0.20) compiles N and K in; before, a separate install left all open.
        options=(("compiled_dims", "nk"),) if version >= (0, 20, 0) else (),
        warmup_calls=warmup.dense_calls(deployment, version, linear, chunk),
    )


def not_for_deepgemm(deployment: VllmDeployment, version: Version) -> list[NotDeepGemm]:
    """What the rows that DeepGEMM does not get are given to."""
    if not gives_small_m_to_flashinfer(deployment, version) or not _has_blocks(deployment):
        return []
    source = "FlashInfer's own kernel with its own cache (kernels/linear/scaled_mm/flashinfer.py)"
    return [NotDeepGemm(f"dense linears below {FIRST_M_ON_SM90} rows", source)]


def gives_small_m_to_flashinfer(deployment: VllmDeployment, version: Version) -> bool:
    """Whether products of few rows run FlashInfer's own kernel."""
    return deployment.is_sm90 and version >= (0, 25, 0)


def _has_blocks(deployment: VllmDeployment) -> bool:
    """Whether any dense linear is FP8 with DeepGEMM's scale blocks."""
    facts = deployment.facts
    linears = facts.attention_linears(range(facts.num_layers), 1)
    names = {linear.name: linear.layers for linear in linears} | {DENSE_DOWN: tuple(range(facts.num_layers))}
    return any(scheme_of(deployment, name, layer).block == BLOCK for name, layers in names.items() for layer in layers)


def _scheme_reason(deployment: VllmDeployment, scheme: Scheme) -> str:
    source = "kernels/linear/scaled_mm/deep_gemm.py"
    if scheme.format is not Format.PLAIN:
        return f"weights are {scheme.text}, not FP8 with 128x128 scale blocks ({source})"
    if scheme != PLAIN:
        return scheme.text
    if deployment.quantization.method is None:
        return f"the checkpoint is not quantised, DeepGEMM takes FP8 with 128x128 scale blocks ({source})"
    return "the checkpoint keeps it unquantised (modules_to_not_convert, ignored_layers)"


def _is_excluded(deployment: VllmDeployment, version: Version) -> bool:
    if deployment.facts.model_type not in EXCLUDED_ON_BLACKWELL or version < (0, 25, 0):
        return False
    major = deployment.target.major_minor[0]
    return major == 10 or (major == 12 and version >= (0, 33, 0))
