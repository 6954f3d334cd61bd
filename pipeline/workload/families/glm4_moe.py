"""GLM-4.5, 4.6 and 4.7: grouped attention, dense layers first, then experts with shared ones.

Source: SGLang 0.5.23 models/glm4_moe.py.
"""

from __future__ import annotations

from pipeline.workload.blocks.feed_forward import DenseMlp, Experts
from pipeline.workload.blocks.grouped import GroupedAttention
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Draft, Layer, ModelFacts

ARCHITECTURES = ("Glm4MoeForCausalLM",)
MODEL_TYPES = ("glm4_moe",)


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.problems`."""
    first_dense = facts.integer("first_k_dense_replace", 0, least=0)
    intermediate, shared = facts.integer("moe_intermediate_size"), facts.integer("n_shared_experts", 0, least=0)
    experts = Experts(
        num=facts.integer("n_routed_experts"),
        intermediate=intermediate,
        top_k=facts.integer("num_experts_per_tok"),
        num_shared=shared,
        shared_intermediate=intermediate * shared,
    )
    dense, attention = DenseMlp(facts.integer("intermediate_size")), grouped_attention(facts)
    num_layers = facts.integer("num_hidden_layers")
    layers = tuple(Layer(attention, dense if layer < first_dense else experts) for layer in range(num_layers))
    return ModelFacts(
        family="glm4_moe",
        architecture=architecture,
        hidden=facts.integer("hidden_size"),
        vocab=facts.integer("vocab_size"),
        layers=layers,
        quantization=facts.quantization(),
        draft=Draft(Layer(attention, experts)) if facts.get("num_nextn_predict_layers") else None,
        model_type="glm4_moe",
    )


def grouped_attention(facts: Facts, *, gated: bool = False) -> GroupedAttention:
    """The attention of a config with the usual field names; head_dim defaults to hidden_size / heads."""
    heads = facts.integer("num_attention_heads")
    head = facts.integer("head_dim", facts.integer("hidden_size") // heads)
    return GroupedAttention(heads, facts.integer("num_key_value_heads", heads), head, head, gated=gated)
