"""A model as servers see it: for each layer an attention and a feed-forward part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pipeline.workload.blocks import Attention
from pipeline.workload.blocks.feed_forward import DenseMlp, Experts, FeedForward
from pipeline.workload.linears import Linear
from pipeline.workload.problems import NotDeepGemm
from pipeline.workload.quantization import Quantization


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


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Everything of a checkpoint that decides shapes; `architecture` as its config spells it."""

    family: str
    """The file of pipeline/workload/families that read it; servers keep rules by it."""
    architecture: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    quantization: Quantization
    draft: Draft | None = None
    is_multimodal: bool = False
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
        found = (layer.feed_forward for layer in self.layers if isinstance(layer.feed_forward, Experts))
        return next(found, None)

    @property
    def dense(self) -> DenseMlp | None:
        """The feed-forward part of its dense layers."""
        return next((layer.feed_forward for layer in self.layers if isinstance(layer.feed_forward, DenseMlp)), None)

    @property
    def has_mrope(self) -> bool:
        """Whether positions have three parts (text, height, width)."""
        return self.is_multimodal and self.family == "qwen3_5"

    def is_moe(self, layer: int) -> bool:
        """Whether the layer has experts."""
        return self.layers[layer].has_experts

    def attentions(self, layers: Iterable[int]) -> dict[Attention, list[int]]:
        """The kinds of attention among these layers, and which layers have each."""
        found: dict[Attention, list[int]] = {}
        for layer in layers:
            found.setdefault(self.layers[layer].attention, []).append(layer)
        return found

    def attention_linears(self, layers: Sequence[int], tp: int) -> list[Linear]:
        """The attention linears of these layers over `tp` ranks; equal ones of different kinds are one."""
        merged: dict[Linear, set[int]] = {}
        for attention, members in self.attentions(layers).items():
            for linear in attention.linears(self.hidden, tp, ()):
                merged.setdefault(linear, set()).update(members)
        return [_with_layers(linear, members) for linear, members in merged.items()]

    def never(self) -> list[NotDeepGemm]:
        """Products that hold no quantised weight, whatever the server and its flags."""
        found = [NotDeepGemm("model.embed_tokens", "a look-up, first pipeline stage only")]
        if self.experts is not None:
            found.append(NotDeepGemm("mlp.gate", "bf16 or fp32 router"))
        found += dict.fromkeys(
            entry for attention in self.attentions(range(self.num_layers)) for entry in attention.never()
        )
        if self.is_multimodal:
            found.append(NotDeepGemm("vision tower", "bf16: its linears are not block FP8 in the checkpoints"))
        return [*found, NotDeepGemm("lm_head", "bf16, not quantised, last pipeline stage only")]


def _with_layers(linear: Linear, layers: Iterable[int]) -> Linear:
    return replace(linear, layers=tuple(sorted(layers)))
