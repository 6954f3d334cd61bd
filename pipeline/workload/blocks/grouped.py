"""Grouped-query attention: query heads share key and value heads, which are repeated where ranks outnumber them.

Shapes: SGLang 0.5.23 layers/linear.py QKVParallelLinear; an output gate doubles the query (models/qwen3_next.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.workload.blocks import Divisor, Geometry, attention_tp, must_divide
from pipeline.workload.linears import ATTENDED, Linear, NotDeepGemm, Refusal, Role, column, row

QKV = "self_attn.qkv_proj"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedAttention:
    """Sizes by short names; `name` tells kinds of one model apart (full, sliding)."""

    heads: int
    kv_heads: int
    head: int
    v_head: int
    gated: bool = False
    is_checked: bool = True
    """False where the model class skips the scale-block check of qkv_proj (MiMo-V2)."""
    name: str = "full"

    @property
    def kind(self) -> str:
        return self.name

    def linears(self, hidden: int, tp: int, layers: tuple[int, ...]) -> list[Linear]:
        query_heads = self.heads * (2 if self.gated else 1) // tp
        kv_heads = max(1, self.kv_heads // tp)
        qkv = Linear(
            QKV,
            Role.ATTENTION,
            split=column(tp),
            parts=(query_heads * self.head, kv_heads * self.head, kv_heads * self.v_head),
            k=hidden,
            layers=layers,
            is_checked=self.is_checked,
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
        return [qkv, out]

    def refusals(self, tp: int) -> list[Refusal]:
        by = attention_tp(tp)
        refusals = must_divide("num_attention_heads", self.heads, by, Role.ATTENTION, Role.KV_UP)
        if self.kv_heads >= tp:
            return refusals + must_divide("num_key_value_heads", self.kv_heads, by, Role.ATTENTION)
        return refusals + must_divide(by.name, tp, Divisor("num_key_value_heads", self.kv_heads, by.key))

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        return []

    def geometry(self, tp: int) -> Geometry:
        return Geometry(query=QKV, heads=self.heads // tp, head=self.head, v_head=self.v_head)
