"""A model as servers see it: for each layer an attention and a feed-forward part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from pipeline.workload.blocks import Attention
from pipeline.workload.blocks.feed_forward import DenseMlp, Experts, FeedForward
from pipeline.workload.declared import Declared
from pipeline.workload.linears import Linear, NotDeepGemm


class Family(Enum):
    """Which file of families/ read the model; servers keep what their classes do by it."""

    DEEPSEEK = "deepseek"
    DEEPSEEK_V4 = "deepseek_v4"
    GLM4_MOE = "glm4_moe"
    GPT_OSS = "gpt_oss"
    LLAMA = "llama"
    MIMO_V2 = "mimo_v2"
    MINIMAX_M2 = "minimax_m2"
    QWEN3 = "qwen3"
    QWEN3_MOE = "qwen3_moe"
    QWEN3_NEXT = "qwen3_next"
    QWEN3_5 = "qwen3_5"


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer; equal layers launch the same."""

    attention: Attention
    feed_forward: FeedForward

    @property
    def has_experts(self) -> bool:
        """Whether it routes tokens."""
        return isinstance(self.feed_forward, Experts)


@dataclass(frozen=True, slots=True)
class Draft:
    """The model's own draft (MTP) layer, and the projections in front of it that are quantised."""

    layer: Layer
    projections: tuple[tuple[str, int], ...] = ()
    """(name, rows one token brings) of each hidden x hidden projection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Everything of a checkpoint that decides shapes; `architecture` as its config spells it."""

    family: Family
    architecture: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    declared: Declared
    """What its files say of its quantisation; each server makes its own of it."""
    draft: Draft | None = None
    is_multimodal: bool = False
    has_mrope: bool = False
    """Whether positions have three parts (text, height, width)."""
    streams: int = 1
    """Residual streams (hc_mult of DeepSeek-V4): the model mixes them before each part."""
    model_type: str = ""
    dtype: str | None = None
    """What the checkpoint says its activations are in; None where it says nothing."""

    @property
    def num_layers(self) -> int:
        """Layers without the draft."""
        return len(self.layers)

    @property
    def experts(self) -> Experts | None:
        """The experts of its layers, None for a dense model."""
        return next((layer.feed_forward for layer in self.layers if isinstance(layer.feed_forward, Experts)), None)

    @property
    def has_fp4_experts(self) -> bool:
        """Whether its experts' weights are FP4."""
        return self.experts is not None and self.experts.is_fp4

    @property
    def dense(self) -> DenseMlp | None:
        """The feed-forward part of its dense layers."""
        return next((layer.feed_forward for layer in self.layers if isinstance(layer.feed_forward, DenseMlp)), None)

    def is_moe(self, layer: int) -> bool:
        """Whether the layer has experts."""
        return self.layers[layer].has_experts

    def attentions(self, layers: Iterable[int]) -> dict[Attention, list[int]]:
        """The kinds of attention among these layers, and which layers have each."""
        layers_of_kind: dict[Attention, list[int]] = {}
        for layer in layers:
            layers_of_kind.setdefault(self.layers[layer].attention, []).append(layer)
        return layers_of_kind

    def attention_linears(self, layers: Sequence[int], tp: int) -> list[Linear]:
        """The attention linears of these layers over `tp` ranks; equal ones of different kinds are one."""
        merged: dict[Linear, set[int]] = {}
        for attention, members in self.attentions(layers).items():
            for linear in attention.linears(self.hidden, tp, ()):
                merged.setdefault(linear, set()).update(members)
        return [_with_layers(linear, members) for linear, members in merged.items()]

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        """Products that hold no quantised weight, whatever the server and its flags."""
        entries = [NotDeepGemm("model.embed_tokens", "a look-up, first pipeline stage only")]
        if self.experts is not None:
            entries.append(NotDeepGemm("mlp.gate", "bf16 or fp32 router"))
        entries += dict.fromkeys(
            entry for attention in self.attentions(range(self.num_layers)) for entry in attention.not_for_deepgemm()
        )
        if self.is_multimodal:
            entries.append(NotDeepGemm("vision tower", "bf16: its linears are not block FP8 in the checkpoints"))
        return [*entries, NotDeepGemm("lm_head", "bf16, not quantised, last pipeline stage only")]


def _with_layers(linear: Linear, layers: Iterable[int]) -> Linear:
    return replace(linear, layers=tuple(sorted(layers)))
