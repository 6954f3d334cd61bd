"""Gated delta net, the linear attention of Qwen3-Next and Qwen3.5.

Shapes: SGLang 0.5.23 models/qwen3_next.py and qwen3_5.py: one merged product for query, key, value and z.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.workload.blocks import Geometry, attention_tp, must_divide
from pipeline.workload.linears import ATTENDED, Linear, NotDeepGemm, Refusal, Role, column, row

MERGED_INPUT = "linear_attn.in_proj_qkvz"


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Sizes by short names."""

    key_heads: int
    value_heads: int
    key_head: int
    value_head: int

    @property
    def kind(self) -> str:
        return "linear"

    def linears(self, hidden: int, tp: int, layers: tuple[int, ...]) -> list[Linear]:
        key = self.key_heads * self.key_head // tp
        value = self.value_heads * self.value_head // tp
        merged = Linear(
            MERGED_INPUT,
            Role.ATTENTION,
            split=column(tp),
            parts=(key, key, value, value),
            k=hidden,
            layers=layers,
        )
        out = Linear(
            "linear_attn.out_proj",
            Role.ATTENTION,
            split=row(tp),
            parts=(hidden,),
            k=value,
            layers=layers,
            source=ATTENDED,
        )
        return [merged, out]

    def refusals(self, tp: int) -> list[Refusal]:
        return [
            *must_divide("linear_num_key_heads", self.key_heads, attention_tp(tp), Role.ATTENTION),
            *must_divide("linear_num_value_heads", self.value_heads, attention_tp(tp), Role.ATTENTION),
        ]

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        return [
            NotDeepGemm("linear_attn.in_proj_ba", "not block FP8: its N is two numbers a head (models/qwen3_next.py)"),
            NotDeepGemm("linear_attn.conv1d", "bf16 convolution"),
        ]

    def geometry(self, tp: int) -> Geometry:
        """The recurrence itself is no matrix product with a weight."""
        return Geometry(query=MERGED_INPUT, heads=self.value_heads // tp, head=self.value_head, v_head=self.value_head)
