"""gpt-oss: grouped attention in bf16 and MXFP4 experts; nothing of it is block FP8.

Source: SGLang 0.5.23 models/gpt_oss.py.
"""

from __future__ import annotations

from pipeline.workload.blocks.feed_forward import Experts
from pipeline.workload.families.glm4_moe import grouped_attention
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Layer, ModelFacts

ARCHITECTURES = ("GptOssForCausalLM",)
MODEL_TYPES = ("gpt_oss",)


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.problems`."""
    experts = Experts(
        num=facts.integer("num_local_experts"),
        intermediate=facts.integer("intermediate_size"),
        top_k=facts.integer("num_experts_per_tok"),
    )
    return ModelFacts(
        family="gpt_oss",
        architecture=architecture,
        hidden=facts.integer("hidden_size"),
        vocab=facts.integer("vocab_size"),
        layers=(Layer(grouped_attention(facts), experts),) * facts.integer("num_hidden_layers"),
        quantization=facts.quantization(),
        model_type="gpt_oss",
    )
