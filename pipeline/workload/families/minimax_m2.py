"""MiniMax-M2 and its successors: grouped attention, experts on every layer, nothing shared.

Source: SGLang 0.5.23 models/minimax_m2.py.
"""

from __future__ import annotations

from pipeline.workload.blocks.feed_forward import Experts
from pipeline.workload.families.glm4_moe import grouped_attention
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Layer, ModelFacts

ARCHITECTURES = ("MiniMaxM2ForCausalLM",)
MODEL_TYPES = ("minimax_m2", "minimax")


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; intermediate_size is that of one expert."""
    experts = Experts(
        num=facts.integer("num_local_experts"),
        intermediate=facts.integer("intermediate_size"),
        top_k=facts.integer("num_experts_per_tok"),
    )
    return ModelFacts(
        family="minimax_m2",
        architecture=architecture,
        hidden=facts.integer("hidden_size"),
        vocab=facts.integer("vocab_size"),
        layers=(Layer(grouped_attention(facts), experts),) * facts.integer("num_hidden_layers"),
        quantization=facts.quantization(),
        model_type="minimax_m2",
    )
