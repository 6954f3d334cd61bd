"""Grouped-query attention: query heads share key and value heads, which are repeated where ranks outnumber them.

Shapes: SGLang 0.5.23 layers/linear.py QKVParallelLinear; an output gate doubles the query (models/qwen3_next.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.workload.blocks import Geometry, must_divide
from pipeline.workload.linears import ATTENDED, Linear, Role, column, row
from pipeline.workload.problems import NotDeepGemm


@dataclass(frozen=True, slots=True)
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
        """See Attention."""
        return self.name

    def linears(self, hidden: int, tp: int, layers: Sequence[int]) -> list[Linear]:
        """See Attention."""
        every = tuple(layers)
        query = self.heads * (2 if self.gated else 1) // tp
        kv = max(1, self.kv_heads // tp)
        parts = (query * self.head, kv * self.head, kv * self.v_head)
        attended = self.heads * self.v_head // tp
        return [
            Linear("self_attn.qkv_proj", Role.ATTENTION, column(tp), parts, hidden, every, is_checked=self.is_checked),
            Linear("self_attn.o_proj", Role.ATTENTION, row(tp), (hidden,), attended, every, source=ATTENDED),
        ]

    def layout_problems(self, tp: int) -> list[str]:
        """See Attention."""
        key = "parallel.tp or attn_dp"
        found = must_divide("num_attention_heads", self.heads, "the attention tp", tp, key)
        if self.kv_heads >= tp:
            return found + must_divide("num_key_value_heads", self.kv_heads, "the attention tp", tp, key)
        return found + must_divide("the attention tp", tp, "num_key_value_heads", self.kv_heads, key)

    def never(self) -> list[NotDeepGemm]:
        """See Attention."""
        return []

    def geometry(self, tp: int) -> Geometry:
        """See Attention."""
        return Geometry("self_attn.qkv_proj", self.heads // tp, self.head, self.v_head)
