"""DeepSeek V2, V3, R1, V3.1, V3.2, Kimi-K2 and K2.5, GLM-5: latent attention, dense layers first, then experts.

Source: SGLang 0.5.23 models/deepseek_v2.py, kimi_k25.py, glm4_moe.py (GlmMoeDsaForCausalLM is a subclass),
configs/model_config.py dsa_layer_skips_topk.
"""

from __future__ import annotations

from pipeline.workload.blocks.feed_forward import DenseMlp, FeedForward
from pipeline.workload.blocks.latent import Indexer, LatentAttention
from pipeline.workload.families.common import draft_of, model_of, routed_and_shared
from pipeline.workload.hf_config import Facts
from pipeline.workload.model import Family, Layer, ModelFacts

INDEXED_ARCHITECTURES = ("DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM")
ARCHITECTURES = (
    "DeepseekV3ForCausalLM",
    "DeepseekV2ForCausalLM",
    "KimiK25ForConditionalGeneration",
    *INDEXED_ARCHITECTURES,
)
MODEL_TYPES = ("deepseek_v3", "deepseek_v2", "deepseek_v32", "glm_moe_dsa", "kimi_k2", "kimi_k25")
SHARED_INDEX = "shared"
COMPUTED_INDEX = "S"


def read(facts: Facts, architecture: str) -> ModelFacts:
    """Take the fields; what is absent is noted in `facts.errors`."""
    num_layers = facts.integer("num_hidden_layers")
    first_dense = facts.integer("first_k_dense_replace", 0, least=0)
    moe_every = facts.integer("moe_layer_freq", 1)
    plain = _attention(facts, None)
    indexed = _attention(facts, _indexer(facts, architecture))
    dense = DenseMlp(facts.integer("intermediate_size"))
    experts = routed_and_shared(facts)

    def feed_forward(layer: int) -> FeedForward:
        return experts if layer >= first_dense and layer % moe_every == 0 else dense

    layers = [
        Layer(plain if skips_index(facts, layer) else indexed, feed_forward(layer)) for layer in range(num_layers)
    ]
    return model_of(facts, Family.DEEPSEEK, architecture, layers, draft=draft_of(facts, Layer(indexed, experts)))


def skips_index(facts: Facts, layer: int) -> bool:
    """Whether a layer takes the key choice of an earlier one and so has no indexer; the first rule that is set wins."""
    types = facts.get("indexer_types")
    pattern = facts.get("index_topk_pattern")
    if isinstance(types, list | tuple):
        return layer < len(types) and types[layer] == SHARED_INDEX
    if isinstance(pattern, str):
        return layer < len(pattern) and pattern[layer] == COMPUTED_INDEX
    period = facts.get("index_topk_freq") or 1
    offset = facts.get("index_skip_topk_offset") or 0
    return max(layer - offset + 1 if offset > 0 else layer - 1, 0) % period != 0


def _indexer(facts: Facts, architecture: str) -> Indexer | None:
    if architecture not in INDEXED_ARCHITECTURES:
        return None
    interleaved = facts.flag("indexer_rope_interleave")
    return Indexer(
        heads=facts.integer("index_n_heads"),
        head=facts.integer("index_head_dim"),
        interleaved_rope=interleaved,
    )


def _attention(facts: Facts, indexer: Indexer | None) -> LatentAttention:
    return LatentAttention(
        heads=facts.integer("num_attention_heads"),
        q_lora_rank=facts.optional_integer("q_lora_rank"),
        kv_lora_rank=facts.integer("kv_lora_rank"),
        nope=facts.integer("qk_nope_head_dim"),
        rope=facts.integer("qk_rope_head_dim"),
        v_head=facts.integer("v_head_dim"),
        indexer=indexer,
    )
