"""SGLang 0.5.23: what each of its model classes does in a way of its own.

Paths are inside the package sglang/srt of that version.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from pipeline.workload.model import Family, ModelFacts
from pipeline.workload.parallel import A2A


class Fusion(Enum):
    """When shared experts become extra routed experts; shared_experts.py has the conditions."""

    DEEPSEEK = auto()
    GLM = auto()
    QWEN_NEXT = auto()
    ENFORCED_ONLY = auto()
    """models/deepseek_v4.py."""
    NEVER = auto()
    """models/qwen2_moe.py for Qwen3.5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangModelClass:
    """One family's class; the defaults are what most of them do."""

    reads_moe_dense_tp_size: bool = False
    """Whether --moe-dense-tp-size 1 replicates its dense layers; the others keep them over tp."""
    spreads_attention_over_tp: bool = False
    """Whether attention ignores attention data parallelism."""
    has_pipeline: bool = True
    """False where it asserts that a rank is first and last (models/qwen3_next.py)."""
    counts_redundant_experts: bool = True
    """False where it sizes its experts without the redundant ones (models/glm4_moe.py)."""
    draft_counts_redundant_experts: bool = True
    """The same for its draft layer (models/deepseek_v4_nextn.py)."""
    replicates_shared_behind: tuple[A2A, ...] | None = None
    """Backends behind which each rank holds the shared experts whole; None means all of them."""
    takes_trtllm_on_sm100: bool = False
    """Whether moe_runner_backend=auto becomes flashinfer_trtllm there (arg_groups/overrides.py, model_overrides/)."""
    overlaps_indexer: bool = False
    """Whether the indexer's wq_b runs beside another stream in captured graphs (layers/attention/dsa)."""
    checks_absent_experts: bool = False
    """Whether a dense model meets the check of experts (model_runner_components/moe_ep_setup.py)."""
    fusion: Fusion = Fusion.DEEPSEEK
    """When shared experts become extra routed experts."""


QWEN2_MOE_REPLICATES = (
    A2A.deepep,
    A2A.deepep_v2,
    A2A.mori,
    A2A.flashinfer,
    A2A.flashinfer_megamoe,
    A2A.megamoe,
)
GLM4_MOE_REPLICATES = (A2A.deepep, A2A.mooncake, A2A.nixl, A2A.mori, A2A.flashinfer, A2A.flashinfer_megamoe)

CLASSES = {
    Family.DEEPSEEK: SglangModelClass(reads_moe_dense_tp_size=True, takes_trtllm_on_sm100=True, overlaps_indexer=True),
    Family.DEEPSEEK_V4: SglangModelClass(draft_counts_redundant_experts=False, fusion=Fusion.ENFORCED_ONLY),
    Family.GLM4_MOE: SglangModelClass(
        reads_moe_dense_tp_size=True,
        counts_redundant_experts=False,
        replicates_shared_behind=GLM4_MOE_REPLICATES,
        fusion=Fusion.GLM,
    ),
    Family.LLAMA: SglangModelClass(spreads_attention_over_tp=True),
    Family.MIMO_V2: SglangModelClass(reads_moe_dense_tp_size=True, takes_trtllm_on_sm100=True),
    Family.QWEN3_MOE: SglangModelClass(takes_trtllm_on_sm100=True),
    Family.QWEN3_NEXT: SglangModelClass(
        has_pipeline=False,
        replicates_shared_behind=QWEN2_MOE_REPLICATES,
        takes_trtllm_on_sm100=True,
        fusion=Fusion.QWEN_NEXT,
    ),
    Family.QWEN3_5: SglangModelClass(
        replicates_shared_behind=QWEN2_MOE_REPLICATES,
        takes_trtllm_on_sm100=True,
        checks_absent_experts=True,
        fusion=Fusion.NEVER,
    ),
}


def class_of(facts: ModelFacts) -> SglangModelClass:
    """The class that serves this model."""
    return CLASSES.get(facts.family, SglangModelClass())
