"""Multi-head latent attention (DeepSeek V2, V3; with an indexer also V3.2 and GLM-5).

Shapes: SGLang 0.5.23 models/deepseek_v2.py DeepseekV2AttentionMLA and layers/attention/dsa/dsa_indexer.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.workload.blocks import Geometry, must_divide
from pipeline.workload.linears import ATTENDED, Linear, Role, Split, column, row
from pipeline.workload.problems import NotDeepGemm

DOWN = "self_attn.fused_qkv_a_proj_with_mqa"
KV_A = "self_attn.kv_a_proj_with_mqa"


@dataclass(frozen=True, slots=True)
class Indexer:
    """Which keys a query attends to is chosen by these smaller heads."""

    heads: int
    head: int
    interleaved_rope: bool = False
    """Then SGLang fuses wk with the bf16 weights_proj."""

    def linears(self, hidden: int, q_lora_rank: int, layers: Sequence[int], source: str) -> list[Linear]:
        """Queries and keys; every rank holds them whole."""
        every = tuple(layers)
        queries = (self.heads * self.head,)
        keys = (self.head,)
        return [
            Linear(
                "self_attn.indexer.wq_b", Role.INDEXER, Split.REPLICATED, queries, q_lora_rank, every, source=source
            ),
            Linear("self_attn.indexer.wk", Role.INDEXER_KEY, Split.REPLICATED, keys, hidden, every),
        ]


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Sizes by short names; `q_lora_rank` None means one query projection."""

    heads: int
    q_lora_rank: int | None
    kv_lora_rank: int
    nope: int
    rope: int
    v_head: int
    indexer: Indexer | None = None

    @property
    def kind(self) -> str:
        """Layers with and without an indexer are two kinds."""
        return "latent" if self.indexer is None else "indexed"

    def linears(self, hidden: int, tp: int, layers: Sequence[int]) -> list[Linear]:
        """See Attention."""
        every = tuple(layers)
        query = self.heads * (self.nope + self.rope) // tp
        kv = self.kv_lora_rank + self.rope
        if self.q_lora_rank is None:
            down = KV_A
            first_kv = 0
            found = [
                Linear("self_attn.q_proj", Role.ATTENTION, column(tp), (query,), hidden, every),
                Linear(KV_A, Role.ATTENTION, Split.REPLICATED, (kv,), hidden, every),
            ]
        else:
            down = DOWN
            first_kv = self.q_lora_rank
            rank = self.q_lora_rank
            found = [
                Linear(DOWN, Role.ATTENTION, Split.REPLICATED, (rank + kv,), hidden, every),
                Linear("self_attn.q_b_proj", Role.ATTENTION, column(tp), (query,), rank, every, source=DOWN),
            ]
            if self.indexer is not None:
                found += self.indexer.linears(hidden, rank, layers, DOWN)
        up = (self.heads * (self.nope + self.v_head) // tp,)
        attended = self.heads * self.v_head // tp
        return [
            *found,
            Linear(
                "self_attn.kv_b_proj", Role.KV_UP, column(tp), up, self.kv_lora_rank, every,
                source=down, source_column=first_kv,
            ),
            Linear("self_attn.o_proj", Role.ATTENTION, row(tp), (hidden,), attended, every, source=ATTENDED),
        ]  # fmt: skip

    def layout_problems(self, tp: int) -> list[str]:
        """See Attention."""
        return must_divide("num_attention_heads", self.heads, "the attention tp", tp, "parallel.tp or attn_dp")

    def never(self) -> list[NotDeepGemm]:
        """See Attention."""
        found = [
            NotDeepGemm(
                "self_attn absorbed kv_b_proj (w_kc, w_vc)",
                "bf16 batched product: deepseek_weight_loader.py dequantises it",
            )
        ]
        if self.indexer is not None:
            found.append(NotDeepGemm("self_attn.indexer.weights_proj", "bf16: layers/attention/dsa/dsa_indexer.py"))
        return found

    def geometry(self, tp: int) -> Geometry:
        """See Attention."""
        query = "self_attn.q_proj" if self.q_lora_rank is None else "self_attn.q_b_proj"
        return Geometry(query, self.heads // tp, self.nope + self.rope, self.v_head)
