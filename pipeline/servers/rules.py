"""What `derive`, the buffers and the dummy runs ask of a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from pipeline.servers.shared.flags import ServerFlags
from pipeline.servers.shared.problems import Kernel, MList, Options, Problem
from pipeline.servers.shared.quantization import Quantization
from pipeline.target import Target
from pipeline.workload.linears import Linear, NotDeepGemm, Refusal
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import Parallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """One kernel that serves a linear, at which M, by which rule."""

    kernel: Kernel
    rule: str
    m: MList
    options: Options = ()
    warmup_calls: int | None = None
    """How many M the server launches at its own start; 0 when it does not visit the problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Over how many ranks each part of a layer is spread."""

    attention: int
    dense: int
    shared: int
    experts: int
    groups: int
    """Experts that one rank holds, fused shared ones included."""
    num_fused: int
    shared_multiple: int = 1
    """What the shared experts' columns on one rank are rounded up to."""


Flags = TypeVar("Flags", bound=ServerFlags)


@dataclass(frozen=True, slots=True)
class Deployment(Generic[Flags]):
    """A model, its layout, the server's flags and the target: all that a rule may look at."""

    facts: ModelFacts
    parallel: Parallel
    server: Flags
    target: Target
    quantization: Quantization
    draft_quantization: Quantization
    """The same for the draft model, which the server loads apart."""

    @property
    def is_sm90(self) -> bool:
        """Hopper."""
        return self.target.major_minor == (9, 0)

    @property
    def is_sm100(self) -> bool:
        """Blackwell and later."""
        return self.target.major_minor >= (10, 0)


class Rules(Protocol):
    """A server under given flags, for one model, layout and target."""

    @property
    def used(self) -> tuple[str, ...]:
        """Which rules were chosen by the version, for the report."""
        ...

    # How many tokens and requests a rank holds.

    @property
    def chunk(self) -> int:
        """Most prefill tokens of one step on one rank; below 1 when prefill is not cut."""
        ...

    @property
    def decode_batch(self) -> int:
        """Most requests of one decode step."""
        ...

    @property
    def eager_batch(self) -> int:
        """Most requests of a step that runs without CUDA graphs."""
        ...

    @property
    def tokens_per_request(self) -> int:
        """Tokens one request brings to a decode step."""
        ...

    @property
    def has_cuda_graphs(self) -> bool:
        """Whether decode steps are captured."""
        ...

    @property
    def batch_multiple(self) -> int:
        """What a dummy run's batch is rounded up to."""
        ...

    @property
    def counts_unpadded_tokens(self) -> bool:
        """Whether the decode set has num_token_non_padded."""
        ...

    def masked_rows(self, tokens: int) -> int | None:
        """Rows of each expert's block in a decode step of `tokens`; None when decode uses the contiguous layout."""
        ...

    # What one rank holds.

    @property
    def quantization(self) -> Quantization:
        """What the server makes of the checkpoint's quantisation."""
        ...

    @property
    def draft_quantization(self) -> Quantization:
        """The same for the draft model."""
        ...

    def refusals(self) -> list[Refusal]:
        """Flags and layouts with which the server would not start."""
        ...

    def split(self, num_layers: int) -> list[int]:
        """Layers of each pipeline-parallel rank."""
        ...

    def widths(self) -> Widths:
        """Over how many ranks each part of a layer is spread."""
        ...

    @property
    def runs_draft(self) -> bool:
        """Whether the model's own draft layer runs beside the last layers."""
        ...

    def linears(self, layers: Sequence[int], *, draft: bool = False) -> list[Linear]:
        """What one rank holds of these layers, or of the draft layer."""
        ...

    def cut_blocks(self, linear: Linear) -> list[str]:
        """Why the server would refuse to load this shard."""
        ...

    # Which kernels serve it.

    @property
    def routes_per_token(self) -> int:
        """Experts that one token visits, fused shared ones included."""
        ...

    @property
    def absorbs_kv_up(self) -> bool:
        """Whether prefill never launches kv_b_proj."""
        ...

    @property
    def nothing_to_autotune(self) -> str | None:
        """Why the server tunes nothing through FlashInfer, or None when it does."""
        ...

    def reason(self, linear: Linear) -> str | None:
        """Why no DeepGEMM kernel serves this linear, or None when one does."""
        ...

    def uses(self, linear: Linear) -> list[Use]:
        """The kernels that serve it."""
        ...

    def standalone_problems(self, layers: Sequence[int], ranks: Sequence[int], *, is_last: bool) -> list[Problem]:
        """Kernels of these layers that no linear is behind."""
        ...

    def not_for_deepgemm(self) -> list[NotDeepGemm]:
        """What goes elsewhere by this server's own choice."""
        ...
