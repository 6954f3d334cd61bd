"""DeepSeek-V4 (Flash, Pro): compressed attention, experts on every layer, several residual streams.

Source: SGLang 0.5.23 models/deepseek_v4.py, deepseek_v4_nextn.py and layers/attention/dsv4/.
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.workload.blocks.compressed import CompressedAttention
from pipeline.workload.blocks.feed_forward import FP4_EXPERTS
from pipeline.workload.families.common import model_of, routed_and_shared
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Draft, Family, Layer, ModelFacts

ARCHITECTURES = ("DeepseekV4ForCausalLM",)
MODEL_TYPES = ("deepseek_v4",)


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.errors`.

    A config without `expert_dtype` is taken to hold FP8 experts, as a checkpoint that was converted to FP8 does.
    """
    num_layers = facts.integer("num_hidden_layers")
    streams = facts.integer("hc_mult", 1)
    attention = _attention(facts)
    experts = routed_and_shared(facts, scheme=FP4_EXPERTS if facts.get("expert_dtype") == FP4_EXPERTS else None)
    ratios = facts.per_layer("compress_ratios", num_layers)
    layers = [Layer(replace(attention, ratio=int(ratio)), experts) for ratio in ratios]
    # The draft layer compresses nothing; h_proj sees every residual stream of a token.
    draft = Draft(Layer(attention, experts), (("e_proj", 1), ("h_proj", streams)))
    return replace(model_of(facts, Family.DEEPSEEK_V4, architecture, layers, draft=draft), streams=streams)


def _attention(facts: Facts) -> CompressedAttention:
    return CompressedAttention(
        heads=facts.integer("num_attention_heads"),
        head=facts.integer("head_dim"),
        q_lora_rank=facts.integer("q_lora_rank"),
        o_groups=facts.integer("o_groups"),
        o_lora_rank=facts.integer("o_lora_rank"),
        index_heads=facts.integer("index_n_heads"),
        index_head=facts.integer("index_head_dim"),
        ratio=0,
    )
