"""The attention of DeepSeek-V4: one key-value head, grouped output projection, per-layer compression.

Shapes: SGLang 0.5.23 models/deepseek_v4.py MqaAttentionBase and layers/attention/dsv4/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.workload.blocks import Geometry, must_divide
from pipeline.workload.linears import ATTENDED, Linear, Role, Split, column, row
from pipeline.workload.problems import NotDeepGemm

DOWN = "self_attn.wqkv_a"
# Layers with this ratio choose their keys by an indexer.
INDEXED_RATIO = 4


@dataclass(frozen=True, slots=True)
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
        """See Attention; layers that only compress differently launch the same."""
        return "indexed" if self.is_indexed else "windowed"

    def linears(self, hidden: int, tp: int, layers: Sequence[int]) -> list[Linear]:
        """See Attention; wo_a is a product of its own kind (see `output_groups`)."""
        every = tuple(layers)
        rank = self.q_lora_rank
        query = (self.heads * self.head // tp,)
        queries = (self.index_heads * self.index_head,)
        found = [
            Linear(DOWN, Role.ATTENTION, Split.REPLICATED, (rank + self.head,), hidden, every),
            Linear("self_attn.wq_b", Role.ATTENTION, column(tp), query, rank, every, source=DOWN),
        ]
        if self.is_indexed:
            found.append(
                Linear("self_attn.indexer.wq_b", Role.INDEXER, Split.REPLICATED, queries, rank, every, source=DOWN)
            )
        lora = self.o_groups * self.o_lora_rank // tp
        return [
            *found,
            Linear("self_attn.wo_b", Role.ATTENTION, row(tp), (hidden,), lora, every, source=ATTENDED),
        ]

    def output_groups(self, tp: int) -> tuple[int, int, int]:
        """(groups, N, K) of wo_a on one rank: one low-rank projection for each group of heads."""
        return self.o_groups // tp, self.o_lora_rank, self.heads * self.head // self.o_groups

    def layout_problems(self, tp: int) -> list[str]:
        """See Attention."""
        key = "parallel.tp or attn_dp"
        found = must_divide("num_attention_heads", self.heads, "the attention tp", tp, key)
        return found + must_divide("o_groups", self.o_groups, "the attention tp", tp, key)

    def never(self) -> list[NotDeepGemm]:
        """See Attention."""
        found = [
            NotDeepGemm(
                "self_attn.compressor.wkv_gate", "bf16 with an fp32 result: layers/attention/dsv4/compressor.py"
            )
        ]
        if self.is_indexed:
            found.append(NotDeepGemm("self_attn.indexer.weights_proj", "bf16: layers/attention/dsv4/indexer.py"))
        return found

    def geometry(self, tp: int) -> Geometry:
        """See Attention."""
        return Geometry("self_attn.wq_b", self.heads // tp, self.head, self.head)
