"""gpt-oss: grouped attention in bf16 and MXFP4 experts; nothing of it is block FP8.

Source: SGLang 0.5.23 models/gpt_oss.py.
"""

from __future__ import annotations

from pipeline.workload.families.common import grouped_attention, local_experts, model_of
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Family, Layer, ModelFacts

ARCHITECTURES = ("GptOssForCausalLM",)
MODEL_TYPES = ("gpt_oss",)


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.errors`."""
    layer = Layer(grouped_attention(facts), local_experts(facts))
    return model_of(facts, Family.GPT_OSS, architecture, [layer] * facts.integer("num_hidden_layers"))
