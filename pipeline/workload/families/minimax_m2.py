"""MiniMax-M2 and its successors: grouped attention, experts on every layer, nothing shared.

Source: SGLang 0.5.23 models/minimax_m2.py.
"""

from __future__ import annotations

from pipeline.workload.families.common import grouped_attention, local_experts, model_of
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Family, Layer, ModelFacts

ARCHITECTURES = ("MiniMaxM2ForCausalLM",)
MODEL_TYPES = ("minimax_m2", "minimax")


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.errors`."""
    layer = Layer(grouped_attention(facts), local_experts(facts))
    return model_of(facts, Family.MINIMAX_M2, architecture, [layer] * facts.integer("num_hidden_layers"))
