"""vLLM: what some of its model classes do in a way of their own, and since which release."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.servers.vllm.versions import Version
from pipeline.workload.model import Family, ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmModelClass:
    """One family's class; the defaults are what most of them do."""

    replicates_shared: bool = True
    """Whether each rank holds the shared experts whole under sequence parallelism."""
    replicates_shared_since: Version = (0, 0, 0)
    """The first release that does."""
    replicates_shared_over_pp: bool = True
    """Whether it does with several pipeline stages too."""
    rounds_shared_since: Version | None = None
    """The first release that rounds shared experts to whole scale blocks on every rank; None means none does."""


CLASSES = {
    Family.GLM4_MOE: VllmModelClass(replicates_shared=False),
    # models/deepseek_v4/nvidia/model.py
    Family.DEEPSEEK_V4: VllmModelClass(
        replicates_shared_since=(0, 27, 0), replicates_shared_over_pp=False, rounds_shared_since=(0, 24, 0)
    ),
}


def class_of(facts: ModelFacts) -> VllmModelClass:
    """The class that serves this model."""
    return CLASSES.get(facts.family, VllmModelClass())
