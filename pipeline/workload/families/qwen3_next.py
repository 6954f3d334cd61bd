"""Qwen3-Next, Qwen3.5 and Qwen3.6: gated delta nets with a gated full attention every few layers; dense or experts.

Source: SGLang 0.5.23 models/qwen3_next.py, qwen3_5.py and qwen2_moe.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pipeline.workload.blocks import Attention
from pipeline.workload.blocks.feed_forward import DenseMlp, Experts, FeedForward
from pipeline.workload.blocks.gated_delta import GatedDeltaNet
from pipeline.workload.families.common import grouped_attention, model_of
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Draft, Family, Layer, ModelFacts

NEXT_ARCHITECTURES = ("Qwen3NextForCausalLM",)
ARCHITECTURES = (
    *NEXT_ARCHITECTURES,
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
)
MODEL_TYPES = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "qwen3_5_text", "qwen3_5_moe_text")
FULL_EVERY = 4


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.errors`."""
    num_layers = facts.integer("num_hidden_layers")
    full = _full(facts)
    linear = _linear(facts)
    feed_forward = _feed_forward(facts)
    layers = [Layer(full if is_full else linear, feed_forward) for is_full in full_layers(facts, num_layers)]
    family = Family.QWEN3_NEXT if architecture in NEXT_ARCHITECTURES else Family.QWEN3_5
    model = model_of(facts, family, architecture, layers, draft=Draft(Layer(full, feed_forward)))
    return replace(model, has_mrope=model.is_multimodal)


def full_layers(facts: Facts, num_layers: int) -> Sequence[bool]:
    """Which layers have full attention: the list of the config, or every full_attention_interval-th."""
    types = facts.get("layer_types") or facts.get("layers_block_type")
    if types is not None:
        return ["full" in str(kind) or kind == "attention" for kind in facts.per_layer(_types_field(facts), num_layers)]
    period = facts.integer("full_attention_interval", FULL_EVERY)
    return [(layer + 1) % period == 0 for layer in range(num_layers)]


def _types_field(facts: Facts) -> str:
    return "layer_types" if facts.get("layer_types") is not None else "layers_block_type"


def _full(facts: Facts) -> Attention:
    return grouped_attention(facts, gated=facts.flag("attn_output_gate", default=True))


def _linear(facts: Facts) -> Attention:
    return GatedDeltaNet(
        key_heads=facts.integer("linear_num_key_heads"),
        value_heads=facts.integer("linear_num_value_heads"),
        key_head=facts.integer("linear_key_head_dim"),
        value_head=facts.integer("linear_value_head_dim"),
    )


def _feed_forward(facts: Facts) -> FeedForward:
    if facts.get("num_experts") is None:
        return DenseMlp(facts.integer("intermediate_size"))
    shared = facts.integer("shared_expert_intermediate_size", 0, least=0)
    return Experts(
        num=facts.integer("num_experts"),
        intermediate=facts.integer("moe_intermediate_size"),
        top_k=facts.integer("num_experts_per_tok"),
        num_shared=1 if shared else 0,
        shared_intermediate=shared,
        shared_name="mlp.shared_expert",
    )
