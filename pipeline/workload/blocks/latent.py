"""Multi-head latent attention (DeepSeek V2, V3; with an indexer also V3.2 and GLM-5).

Shapes: SGLang 0.5.23 models/deepseek_v2.py DeepseekV2AttentionMLA and layers/attention/dsa/dsa_indexer.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.workload.blocks import Geometry, attention_tp, must_divide
from pipeline.workload.linears import ATTENDED, Linear, NotDeepGemm, Refusal, Role, Split, column, row

DOWN = "self_attn.fused_qkv_a_proj_with_mqa"
KV_A = "self_attn.kv_a_proj_with_mqa"


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """Which keys a query attends to is chosen by these smaller heads."""

    heads: int
    head: int
    interleaved_rope: bool = False
    """Then SGLang fuses wk with the bf16 weights_proj."""

    def linears(self, hidden: int, q_lora_rank: int, layers: tuple[int, ...]) -> list[Linear]:
        """Every rank holds queries and keys whole; queries read the down-projected ones of the attention."""
        queries = Linear(
            "self_attn.indexer.wq_b",
            Role.INDEXER,
            split=Split.REPLICATED,
            parts=(self.heads * self.head,),
            k=q_lora_rank,
            layers=layers,
            source=DOWN,
        )
        keys = Linear(
            "self_attn.indexer.wk",
            Role.INDEXER_KEY,
            split=Split.REPLICATED,
            parts=(self.head,),
            k=hidden,
            layers=layers,
        )
        return [queries, keys]


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def linears(self, hidden: int, tp: int, layers: tuple[int, ...]) -> list[Linear]:
        if self.q_lora_rank is None:
            return [*self._separate_query(hidden, tp, layers), *self._up_and_out(hidden, tp, layers, KV_A, 0)]
        return [
            *self._low_rank_query(hidden, self.q_lora_rank, tp, layers),
            *self._up_and_out(hidden, tp, layers, DOWN, self.q_lora_rank),
        ]

    def refusals(self, tp: int) -> list[Refusal]:
        return must_divide("num_attention_heads", self.heads, attention_tp(tp), Role.ATTENTION, Role.KV_UP)

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        absorbed = NotDeepGemm(
            "self_attn absorbed kv_b_proj (w_kc, w_vc)",
            "bf16 batched product: deepseek_weight_loader.py dequantises it",
        )
        if self.indexer is None:
            return [absorbed]
        return [
            absorbed,
            NotDeepGemm("self_attn.indexer.weights_proj", "bf16: layers/attention/dsa/dsa_indexer.py"),
        ]

    def geometry(self, tp: int) -> Geometry:
        return Geometry(
            query="self_attn.q_proj" if self.q_lora_rank is None else "self_attn.q_b_proj",
            heads=self.heads // tp,
            head=self.nope + self.rope,
            v_head=self.v_head,
        )

    def _query_columns(self, tp: int) -> int:
        return self.heads * (self.nope + self.rope) // tp

    @property
    def _kv_columns(self) -> int:
        return self.kv_lora_rank + self.rope

    def _separate_query(self, hidden: int, tp: int, layers: tuple[int, ...]) -> list[Linear]:
        query = Linear(
            "self_attn.q_proj",
            Role.ATTENTION,
            split=column(tp),
            parts=(self._query_columns(tp),),
            k=hidden,
            layers=layers,
        )
        kv_down = Linear(
            KV_A, Role.ATTENTION, split=Split.REPLICATED, parts=(self._kv_columns,), k=hidden, layers=layers
        )
        return [query, kv_down]

    def _low_rank_query(self, hidden: int, rank: int, tp: int, layers: tuple[int, ...]) -> list[Linear]:
        down = Linear(
            DOWN, Role.ATTENTION, split=Split.REPLICATED, parts=(rank + self._kv_columns,), k=hidden, layers=layers
        )
        query = Linear(
            "self_attn.q_b_proj",
            Role.ATTENTION,
            split=column(tp),
            parts=(self._query_columns(tp),),
            k=rank,
            layers=layers,
            source=DOWN,
        )
        indexer = [] if self.indexer is None else self.indexer.linears(hidden, rank, layers)
        return [down, query, *indexer]

    def _up_and_out(self, hidden: int, tp: int, layers: tuple[int, ...], down: str, first_kv: int) -> list[Linear]:
        """`down` gives the compressed keys and values, from its column `first_kv` on."""
        up = Linear(
            "self_attn.kv_b_proj",
            Role.KV_UP,
            split=column(tp),
            parts=(self.heads * (self.nope + self.v_head) // tp,),
            k=self.kv_lora_rank,
            layers=layers,
            source=down,
            source_column=first_kv,
        )
        out = Linear(
            "self_attn.o_proj",
            Role.ATTENTION,
            split=row(tp),
            parts=(hidden,),
            k=self.heads * self.v_head // tp,
            layers=layers,
            source=ATTENDED,
        )
        return [up, out]
