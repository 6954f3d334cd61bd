"""The attention of DeepSeek-V4: one key-value head, grouped output projection, per-layer compression.

Shapes: SGLang 0.5.23 models/deepseek_v4.py MqaAttentionBase and layers/attention/dsv4/.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.workload.blocks import Geometry, attention_tp, must_divide
from pipeline.workload.linears import ATTENDED, Linear, NotDeepGemm, Refusal, Role, Split, column, row

DOWN = "self_attn.wqkv_a"
QUERY = "self_attn.wq_b"
# Layers with this ratio choose their keys by an indexer.
INDEXED_RATIO = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """Sizes by short names; `ratio` is the layer's compression of its keys."""

    heads: int
    head: int
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    index_heads: int
    index_head: int
    ratio: int

    @property
    def is_indexed(self) -> bool:
        """Whether the layer has an indexer."""
        return self.ratio == INDEXED_RATIO

    @property
    def kind(self) -> str:
        """Layers that only compress differently launch the same."""
        return "indexed" if self.is_indexed else "windowed"

    def linears(self, hidden: int, tp: int, layers: tuple[int, ...]) -> list[Linear]:
        """Without wo_a, which is a product of its own kind (see `output_groups`)."""
        rank = self.q_lora_rank
        down = Linear(DOWN, Role.ATTENTION, split=Split.REPLICATED, parts=(rank + self.head,), k=hidden, layers=layers)
        query = Linear(
            QUERY,
            Role.ATTENTION,
            split=column(tp),
            parts=(self.heads * self.head // tp,),
            k=rank,
            layers=layers,
            source=DOWN,
        )
        out = Linear(
            "self_attn.wo_b",
            Role.ATTENTION,
            split=row(tp),
            parts=(hidden,),
            k=self.o_groups * self.o_lora_rank // tp,
            layers=layers,
            source=ATTENDED,
        )
        return [down, query, *([self._index_queries(layers)] if self.is_indexed else []), out]

    def output_groups(self, tp: int) -> tuple[int, int, int]:
        """(groups, N, K) of wo_a on one rank: one low-rank projection for each group of heads."""
        return self.o_groups // tp, self.o_lora_rank, self.heads * self.head // self.o_groups

    def refusals(self, tp: int) -> list[Refusal]:
        return [
            *must_divide("num_attention_heads", self.heads, attention_tp(tp), Role.ATTENTION, Role.KV_UP),
            *must_divide("o_groups", self.o_groups, attention_tp(tp), Role.ATTENTION),
        ]

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        compressor = NotDeepGemm(
            "self_attn.compressor.wkv_gate", "bf16 with an fp32 result: layers/attention/dsv4/compressor.py"
        )
        if not self.is_indexed:
            return [compressor]
        return [
            compressor,
            NotDeepGemm("self_attn.indexer.weights_proj", "bf16: layers/attention/dsv4/indexer.py"),
        ]

    def geometry(self, tp: int) -> Geometry:
        return Geometry(query=QUERY, heads=self.heads // tp, head=self.head, v_head=self.head)

    def _index_queries(self, layers: tuple[int, ...]) -> Linear:
        return Linear(
            "self_attn.indexer.wq_b",
            Role.INDEXER,
            split=Split.REPLICATED,
            parts=(self.index_heads * self.index_head,),
            k=self.q_lora_rank,
            layers=layers,
            source=DOWN,
        )
