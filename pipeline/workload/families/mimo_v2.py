"""MiMo-V2: full and sliding-window layers with heads of their own, dense or experts by a list.

Source: SGLang 0.5.23 models/mimo_v2.py and mimo_v2_nextn.py.
"""

from __future__ import annotations

from pipeline.workload.blocks.feed_forward import DenseMlp
from pipeline.workload.blocks.grouped import GroupedAttention
from pipeline.workload.families.common import model_of, routed_and_shared
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Draft, Family, Layer, ModelFacts

ARCHITECTURES = ("MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM")
MODEL_TYPES = ("mimo_v2_flash", "mimo_v2")
SLIDING = 1


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.errors`."""
    num_layers = facts.integer("num_hidden_layers")
    full = _attention(facts, "", "full")
    sliding = _attention(facts, "swa_", "sliding")
    dense = DenseMlp(facts.integer("intermediate_size"))
    experts = routed_and_shared(facts)
    pattern = facts.per_layer("hybrid_layer_pattern", num_layers)
    routed = facts.per_layer("moe_layer_freq", num_layers)
    layers = [
        Layer(sliding if kind == SLIDING else full, experts if has_experts else dense)
        for kind, has_experts in zip(pattern, routed, strict=True)
    ]
    return model_of(facts, Family.MIMO_V2, architecture, layers, draft=Draft(Layer(sliding, dense)))


def _attention(facts: Facts, prefix: str, name: str) -> GroupedAttention:
    head = facts.integer(f"{prefix}head_dim")
    return GroupedAttention(
        heads=facts.integer(f"{prefix}num_attention_heads"),
        kv_heads=facts.integer(f"{prefix}num_key_value_heads"),
        head=head,
        v_head=facts.integer(f"{prefix}v_head_dim", head),
        is_checked=False,
        name=name,
    )
