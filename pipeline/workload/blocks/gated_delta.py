"""Gated delta net, the linear attention of Qwen3-Next and Qwen3.5.

Shapes: SGLang 0.5.23 models/qwen3_next.py and qwen3_5.py: one merged product for query, key, value and z.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.workload.blocks import Geometry, must_divide
from pipeline.workload.linears import ATTENDED, Linear, Role, column, row
from pipeline.workload.problems import NotDeepGemm


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Sizes by short names."""

    key_heads: int
    value_heads: int
    key_head: int
    value_head: int

    @property
    def kind(self) -> str:
        """See Attention."""
        return "linear"

    def linears(self, hidden: int, tp: int, layers: Sequence[int]) -> list[Linear]:
        """See Attention."""
        every = tuple(layers)
        key = self.key_heads * self.key_head // tp
        value = self.value_heads * self.value_head // tp
        merged = (key, key, value, value)
        return [
            Linear("linear_attn.in_proj_qkvz", Role.ATTENTION, column(tp), merged, hidden, every),
            Linear("linear_attn.out_proj", Role.ATTENTION, row(tp), (hidden,), value, every, source=ATTENDED),
        ]

    def layout_problems(self, tp: int) -> list[str]:
        """See Attention."""
        key = "parallel.tp or attn_dp"
        found = must_divide("linear_num_key_heads", self.key_heads, "the attention tp", tp, key)
        return found + must_divide("linear_num_value_heads", self.value_heads, "the attention tp", tp, key)

    def never(self) -> list[NotDeepGemm]:
        """See Attention."""
        return [
            NotDeepGemm("linear_attn.in_proj_ba", "not block FP8: its N is two numbers a head (models/qwen3_next.py)"),
            NotDeepGemm("linear_attn.conv1d", "bf16 convolution"),
        ]

    def geometry(self, tp: int) -> Geometry:
        """See Attention; the recurrence itself is no matrix product with a weight."""
        return Geometry("linear_attn.in_proj_qkvz", self.value_heads // tp, self.value_head, self.value_head)
