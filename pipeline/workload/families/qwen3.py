"""Qwen3 dense and Qwen3-MoE (30B-A3B, 235B-A22B, Coder-480B): grouped attention; experts, if any, on every layer.

Source: SGLang 0.5.23 models/qwen3.py and qwen3_moe.py, which ignores mlp_only_layers and decoder_sparse_step.
"""

from __future__ import annotations

from pipeline.workload.blocks.feed_forward import DenseMlp, Experts, FeedForward
from pipeline.workload.families.common import grouped_attention, model_of
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Family, Layer, ModelFacts

MOE_ARCHITECTURES = ("Qwen3MoeForCausalLM",)
ARCHITECTURES = ("Qwen3ForCausalLM", *MOE_ARCHITECTURES)
MODEL_TYPES = ("qwen3", "qwen3_moe")


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.errors`."""
    has_experts = architecture in MOE_ARCHITECTURES or facts.get("model_type") == "qwen3_moe"
    layer = Layer(grouped_attention(facts), _experts(facts) if has_experts else _dense(facts))
    family = Family.QWEN3_MOE if has_experts else Family.QWEN3
    return model_of(facts, family, architecture, [layer] * facts.integer("num_hidden_layers"))


def _dense(facts: Facts) -> FeedForward:
    return DenseMlp(facts.integer("intermediate_size"))


def _experts(facts: Facts) -> FeedForward:
    return Experts(
        num=facts.integer("num_experts"),
        intermediate=facts.integer("moe_intermediate_size"),
        top_k=facts.integer("num_experts_per_tok"),
    )
