"""DeepSeek V2, V3, R1, V3.1 and Kimi-K2: multi-head latent attention, dense layers first, then experts.

Shapes: SGLang 0.5.23 models/deepseek_v2.py (DeepseekV2AttentionMLA, DeepseekV2MLP, DeepseekV2MoE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.workload.hf_config import Facts, Quantization
from pipeline.workload.linears import Linear, Role, Split
from pipeline.workload.parallel import Parallel

ARCHITECTURES = ("DeepseekV3ForCausalLM", "DeepseekV2ForCausalLM")
# models/deepseek_v2.py: fused_shared_experts_architecture of the class.
FUSING_ARCHITECTURE = "DeepseekV3ForCausalLM"


@dataclass(frozen=True, slots=True)
class DeepseekFacts:
    """The fields of config.json that decide shapes, by short names; `architecture` as the config spells it."""

    architecture: str
    hidden: int
    num_layers: int
    vocab: int
    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope: int
    rope: int
    v_head: int
    intermediate: int
    moe_intermediate: int
    num_experts: int
    num_shared: int
    top_k: int
    first_dense: int
    moe_every: int
    quantization: Quantization

    def is_moe(self, layer: int) -> bool:
        """Whether the layer has experts."""
        return layer >= self.first_dense and layer % self.moe_every == 0


def read(facts: Facts, architecture: str) -> DeepseekFacts:
    """Take the fields; what is absent is noted in `facts.problems`."""
    return DeepseekFacts(
        architecture=architecture,
        hidden=facts.integer("hidden_size"),
        num_layers=facts.integer("num_hidden_layers"),
        vocab=facts.integer("vocab_size"),
        heads=facts.integer("num_attention_heads"),
        q_lora_rank=facts.optional_integer("q_lora_rank"),
        kv_lora_rank=facts.integer("kv_lora_rank"),
        nope=facts.integer("qk_nope_head_dim"),
        rope=facts.integer("qk_rope_head_dim"),
        v_head=facts.integer("v_head_dim"),
        intermediate=facts.integer("intermediate_size"),
        moe_intermediate=facts.integer("moe_intermediate_size"),
        num_experts=facts.integer("n_routed_experts"),
        num_shared=facts.integer("n_shared_experts", 0, least=0),
        top_k=facts.integer("num_experts_per_tok"),
        first_dense=facts.integer("first_k_dense_replace", 0, least=0),
        moe_every=facts.integer("moe_layer_freq", 1),
        quantization=facts.quantization(),
    )


def layout_problems(facts: DeepseekFacts, parallel: Parallel) -> list[str]:
    """Divisions that leave a remainder, one line each."""
    return [
        f"{what} {total} must be divisible by {divisor_name} {divisor}; change {key}"
        for what, total, divisor_name, divisor, key in (
            ("num_attention_heads", facts.heads, "the attention tp", parallel.attn_tp, "parallel.tp or attn_dp"),
            ("n_routed_experts", facts.num_experts, "the expert parallel size", parallel.effective_ep, "parallel.ep"),
            ("moe_intermediate_size", facts.moe_intermediate, "the expert tp", parallel.moe_tp, "parallel.ep or tp"),
            ("intermediate_size", facts.intermediate, "the dense tp", parallel.dense_tp, "parallel.tp"),
        )
        if total % divisor != 0
    ]


def attention(facts: DeepseekFacts, parallel: Parallel, layers: Sequence[int]) -> list[Linear]:
    """The linears of latent attention on one rank."""
    tp = parallel.attn_tp
    every = tuple(layers)
    head = facts.nope + facts.rope

    def column(name: str, n: int, k: int, role: Role = Role.ATTENTION) -> Linear:
        return Linear(f"self_attn.{name}", role, Split.COLUMN, (n,), k, every, shard_key="parallel.tp")

    kv_a = (facts.kv_lora_rank + facts.rope,)
    if facts.q_lora_rank is None:
        down = [
            column("q_proj", facts.heads * head // tp, facts.hidden),
            Linear("self_attn.kv_a_proj_with_mqa", Role.ATTENTION, Split.REPLICATED, kv_a, facts.hidden, every),
        ]
    else:
        parts = (facts.q_lora_rank, *kv_a)
        down = [
            Linear("self_attn.fused_qkv_a_proj_with_mqa", Role.ATTENTION, Split.REPLICATED, parts, facts.hidden, every),
            column("q_b_proj", facts.heads * head // tp, facts.q_lora_rank),
        ]
    kv_up = facts.heads * (facts.nope + facts.v_head) // tp
    return [
        *down,
        column("kv_b_proj", kv_up, facts.kv_lora_rank, Role.KV_UP),
        Linear("self_attn.o_proj", Role.ATTENTION, Split.ROW, (facts.hidden,), facts.heads * facts.v_head // tp, every),
    ]


def feed_forward(
    name: str, role: Role, *, hidden: int, intermediate: int, tp: int, layers: Sequence[int]
) -> list[Linear]:
    """A gated feed-forward part: merged gate and up, then down, over `tp` ranks."""
    column, row = (Split.COLUMN, Split.ROW) if tp > 1 else (Split.REPLICATED, Split.REPLICATED)
    shard = intermediate // tp
    return [
        Linear(f"{name}.gate_up_proj", role, column, (shard, shard), hidden, tuple(layers)),
        Linear(f"{name}.down_proj", role, row, (hidden,), shard, tuple(layers)),
    ]


def experts(facts: DeepseekFacts, parallel: Parallel, layers: Sequence[int], *, num_fused_shared: int) -> list[Linear]:
    """The two grouped products of the experts that one rank holds."""
    groups = facts.num_experts // parallel.effective_ep + num_fused_shared
    shard = facts.moe_intermediate // parallel.moe_tp
    key = "parallel.tp, or raise parallel.ep"
    return [
        Linear("mlp.experts.w13", Role.EXPERTS, Split.COLUMN, (shard, shard), facts.hidden, tuple(layers), groups, key),
        Linear("mlp.experts.w2", Role.EXPERTS, Split.ROW, (facts.hidden,), shard, tuple(layers), groups, key),
    ]
