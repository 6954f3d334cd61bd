"""What several families read from a config under the same names."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.workload.blocks.feed_forward import Experts
from pipeline.workload.blocks.grouped import GroupedAttention
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Draft, Family, Layer, ModelFacts

# How transformers ends the names of models that see pictures.
MULTIMODAL = "ForConditionalGeneration"


def model_of(
    facts: Facts, family: Family, architecture: str, layers: Sequence[Layer], *, draft: Draft | None = None
) -> ModelFacts:
    """The model, with the fields that every config has."""
    return ModelFacts(
        family=family,
        architecture=architecture,
        hidden=facts.integer("hidden_size"),
        vocab=facts.integer("vocab_size"),
        layers=tuple(layers),
        declared=facts.declared,
        draft=draft,
        is_multimodal=architecture.endswith(MULTIMODAL),
        model_type=str(facts.get("model_type") or ""),
        dtype=facts.get("dtype") or facts.get("torch_dtype"),
    )


def grouped_attention(facts: Facts, *, gated: bool = False) -> GroupedAttention:
    """Grouped-query attention; head_dim defaults to hidden_size / heads."""
    heads = facts.integer("num_attention_heads")
    head = facts.integer("head_dim", facts.integer("hidden_size") // heads)
    return GroupedAttention(
        heads=heads,
        kv_heads=facts.integer("num_key_value_heads", heads),
        head=head,
        v_head=head,
        gated=gated,
    )


def routed_and_shared(facts: Facts, *, scheme: str | None = None) -> Experts:
    """n_routed_experts, and n_shared_experts of the same size each."""
    intermediate = facts.integer("moe_intermediate_size")
    shared = facts.integer("n_shared_experts", 0, least=0)
    return Experts(
        num=facts.integer("n_routed_experts"),
        intermediate=intermediate,
        top_k=facts.integer("num_experts_per_tok"),
        num_shared=shared,
        shared_intermediate=intermediate * shared,
        scheme=scheme,
        is_clamped=facts.get("swiglu_limit") is not None,
    )


def local_experts(facts: Facts) -> Experts:
    """num_local_experts of intermediate_size each."""
    return Experts(
        num=facts.integer("num_local_experts"),
        intermediate=facts.integer("intermediate_size"),
        top_k=facts.integer("num_experts_per_tok"),
    )


def draft_of(facts: Facts, layer: Layer) -> Draft | None:
    """A draft layer like this one where the checkpoint has one."""
    return Draft(layer) if facts.get("num_nextn_predict_layers") else None
