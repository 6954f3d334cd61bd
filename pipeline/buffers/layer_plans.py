"""Which layers a dummy forward runs: each distinct kind once, in a decode-shaped and in an extend-shaped batch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.arithmetic import round_up
from pipeline.buffers.decode_set import DecodeSize
from pipeline.buffers.names import OperandNames
from pipeline.servers.derive import Workload
from pipeline.workload.blocks import Geometry
from pipeline.workload.linears import ATTENDED, HIDDEN, Linear, Role
from pipeline.workload.model import Layer

SCALE_BLOCK = 128
# Its experts have no DeepGEMM runner in SGLang.
COMPRESSED_TENSORS = "compressed-tensors"
KV_PAGE_TOKENS = 64
# The reference kernels need seconds for a layer of this many tokens, and minutes for a chunk.
EXTEND_TOKENS_ON_CPU = 128
# One step of a server that does not cut prefill: what SGLang's --max-prefill-tokens is by default.
UNCHUNKED_TOKENS = 16384
ATTENTION_ROLES = (Role.ATTENTION, Role.KV_UP, Role.INDEXER, Role.INDEXER_KEY)
FEED_FORWARD_ROLES = (Role.DENSE_MLP, Role.SHARED_EXPERTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPlan:
    """One distinct kind of layer of the deployment, in one shape of batch, and the phase in which its operands live."""

    phase: str
    linears: tuple[Linear, ...]
    """What DeepGEMM serves of it, in order; experts come last."""
    geometry: Geometry
    tokens: int
    """Rows of its operands: the largest decode step, or one chunk of prefill."""
    requests: int
    """Requests that share the tokens."""
    is_extend: bool
    """Whether it is shaped like prefill: requests of KV_PAGE_TOKENS new tokens each."""
    masked_rows: int | None
    """Rows of each expert's block in the masked layout; None means the contiguous layout."""

    @property
    def names(self) -> OperandNames:
        """What its buffers are called."""
        return OperandNames(self.phase)

    @property
    def query(self) -> Linear | None:
        """The linear whose output holds the query; None when it is not on DeepGEMM."""
        return next((linear for linear in self.linears if linear.name == self.geometry.query), None)

    @property
    def attention(self) -> tuple[Linear, ...]:
        """The attention's linears, the indexer's among them."""
        return tuple(linear for linear in self.linears if linear.role in ATTENTION_ROLES)

    @property
    def gate_ups(self) -> tuple[Linear, ...]:
        """The first product of each feed-forward part that is not routed: its output is the gate and the up half."""
        return tuple(linear for linear in self.linears if is_gate_up(linear))

    @property
    def experts(self) -> tuple[Linear, Linear] | None:
        """The two grouped products of the routed experts; None when DeepGEMM serves none."""
        experts = [linear for linear in self.linears if linear.role is Role.EXPERTS]
        return (experts[0], experts[1]) if experts else None

    @property
    def has_experts(self) -> bool:
        """Whether routed experts run on DeepGEMM's grouped kernels."""
        return self.experts is not None

    def launches(self, name: str) -> bool:
        """Whether a linear of this name is among those that DeepGEMM serves."""
        return any(linear.name == name for linear in self.linears)

    def reader_of(self, linear: Linear) -> Linear | None:
        """The linear that reads this one's output; None when DeepGEMM serves none that does."""
        return next((reader for reader in self.linears if reader.source == linear.name), None)

    def reads_a_part(self, linear: Linear) -> bool:
        """Whether an attention linear reads neither the hidden states nor all of what was attended."""
        if linear.role not in ATTENTION_ROLES or linear.source == HIDDEN:
            return False
        return linear.source != ATTENDED or linear.k != self.geometry.heads * self.geometry.v_head


def is_gate_up(linear: Linear) -> bool:
    """Whether it is the first product of a feed-forward part that is not routed."""
    return linear.role in FEED_FORWARD_ROLES and linear.source == HIDDEN


def extend_shape(workload: Workload, size: DecodeSize, *, on_gpu: bool) -> int:
    """Tokens of the prefill-shaped dummy batch: one chunk; on the CPU at most EXTEND_TOKENS_ON_CPU."""
    chunk = workload.rules.chunk if workload.rules.chunk > 0 else UNCHUNKED_TOKENS
    tokens = chunk if on_gpu else min(chunk, EXTEND_TOKENS_ON_CPU)
    return round_up(tokens, math.lcm(size.multiple, KV_PAGE_TOKENS))


def distinct_layers(workload: Workload, size: DecodeSize, *, extend_tokens: int) -> tuple[LayerPlan, ...]:
    """A decode-shaped and an extend-shaped plan for each kind of layer that any rank holds.

    Kinds differ in their attention, in having experts, and in which of their linears DeepGEMM serves.
    """
    decode: list[LayerPlan] = []
    extend: list[LayerPlan] = []
    for kind in _kinds(workload):
        decode.append(_decode_plan(workload, kind, size))
        extend.append(_extend_plan(workload, kind, extend_tokens))
    return (*decode, *extend)


@dataclass(frozen=True, slots=True)
class _Kind:
    phase: str
    layer: Layer
    linears: tuple[Linear, ...]


def _kinds(workload: Workload) -> list[_Kind]:
    """Each kind once; those that differ only in what DeepGEMM serves of them are numbered from the second on."""
    kinds: dict[tuple[str, frozenset[str]], _Kind] = {}
    counts: Counter[str] = Counter()
    for rank in workload.pipeline_ranks:
        for index in rank.layers:
            layer = workload.facts.layers[index]
            phase = _phase(workload, layer)
            linears = dummy_linears(workload, [linear for linear in rank.linears if index in linear.layers])
            key = (phase, frozenset(linear.name for linear in linears))
            if key not in kinds:
                counts[phase] += 1
                number = f"_{counts[phase]}" if counts[phase] > 1 else ""
                kinds[key] = _Kind(phase + number, layer, linears)
    return list(kinds.values())


def _phase(workload: Workload, layer: Layer) -> str:
    kinds = {layer.attention.kind for layer in workload.facts.layers}
    attention = f"{layer.attention.kind}_" if len(kinds) > 1 else ""
    return f"forward.{attention}{'moe' if layer.has_experts else 'dense'}"


def _decode_plan(workload: Workload, kind: _Kind, size: DecodeSize) -> LayerPlan:
    """Behind an all-to-all backend the experts have the masked layout."""
    rules = workload.rules
    return LayerPlan(
        phase=kind.phase,
        linears=tuple(linear for linear in kind.linears if linear.role is not Role.KV_UP),
        geometry=kind.layer.attention.geometry(rules.widths().attention),
        tokens=size.decode_tokens,
        requests=size.max_batch,
        is_extend=False,
        masked_rows=rules.masked_rows(size.decode_tokens) if kind.layer.has_experts else None,
    )


def _extend_plan(workload: Workload, kind: _Kind, tokens: int) -> LayerPlan:
    rules = workload.rules
    return LayerPlan(
        phase=f"{kind.phase}_extend",
        linears=tuple(linear for linear in kind.linears if linear.role is not Role.KV_UP or not rules.absorbs_kv_up),
        geometry=kind.layer.attention.geometry(rules.widths().attention),
        tokens=tokens,
        requests=tokens // KV_PAGE_TOKENS,
        is_extend=True,
        masked_rows=None,
    )


def dummy_linears(workload: Workload, linears: Sequence[Linear]) -> tuple[Linear, ...]:
    """What a dummy layer launches: block-FP8 linears that DeepGEMM takes, and experts it could take under other flags.

    The draft's layer is not among them: it is launched as one more layer of a kind that is there already.
    """
    in_blocks = [linear for linear in linears if linear.scheme.block == (SCALE_BLOCK, SCALE_BLOCK)]
    products = [
        linear
        for linear in in_blocks
        if linear.role not in (Role.EXPERTS, Role.DRAFT) and workload.rules.reason(linear) is None
    ]
    experts = [linear for linear in in_blocks if linear.role is Role.EXPERTS]
    own_scheme = workload.facts.experts is not None and workload.facts.experts.scheme is not None
    fits = all(linear.n % SCALE_BLOCK == 0 and linear.k % SCALE_BLOCK == 0 for linear in experts)
    is_compressed = any(linear.scheme.method == COMPRESSED_TENSORS for linear in experts)
    return tuple(products + (experts if fits and not own_scheme and not is_compressed else []))
