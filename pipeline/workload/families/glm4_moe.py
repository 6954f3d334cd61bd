"""GLM-4.5, 4.6 and 4.7: grouped attention, dense layers first, then experts with shared ones.

Source: SGLang 0.5.23 models/glm4_moe.py.
"""

from __future__ import annotations

from pipeline.workload.blocks.feed_forward import DenseMlp
from pipeline.workload.families.common import draft_of, grouped_attention, model_of, routed_and_shared
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Family, Layer, ModelFacts

ARCHITECTURES = ("Glm4MoeForCausalLM",)
MODEL_TYPES = ("glm4_moe",)


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.errors`."""
    attention = grouped_attention(facts)
    dense = Layer(attention, DenseMlp(facts.integer("intermediate_size")))
    sparse = Layer(attention, routed_and_shared(facts))
    first_dense = facts.integer("first_k_dense_replace", 0, least=0)
    layers = [dense if layer < first_dense else sparse for layer in range(facts.integer("num_hidden_layers"))]
    return model_of(facts, Family.GLM4_MOE, architecture, layers, draft=draft_of(facts, sparse))
