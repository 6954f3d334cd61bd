"""Llama and models of its shape: grouped attention and a dense feed-forward part, all over the whole tp.

Source: SGLang 0.5.23 models/llama.py.
"""

from __future__ import annotations

from pipeline.workload.blocks.feed_forward import DenseMlp
from pipeline.workload.families.common import grouped_attention, model_of
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Family, Layer, ModelFacts

ARCHITECTURES = ("LlamaForCausalLM", "MistralForCausalLM", "Phi3ForCausalLM", "InternLM3ForCausalLM")
MODEL_TYPES = ("llama", "mistral", "phi3", "internlm3")


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.errors`."""
    layer = Layer(grouped_attention(facts), DenseMlp(facts.integer("intermediate_size")))
    return model_of(facts, Family.LLAMA, architecture, [layer] * facts.integer("num_hidden_layers"))
