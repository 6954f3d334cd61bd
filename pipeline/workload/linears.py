"""One matrix product of a layer on one rank, before a server decides which kernel runs it."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from enum import Enum, auto

from pipeline.workload.scheme import PLAIN, Scheme

# What a linear reads, besides another linear's output: the normed hidden states, or what attention gave.
HIDDEN = "hidden"
ATTENDED = "attended"


class Split(Enum):
    """How a weight is spread over the ranks that share it; over one rank nothing is split."""

    REPLICATED = auto()
    COLUMN = auto()
    """N is divided."""
    ROW = auto()
    """K is divided."""


class Role(Enum):
    """Where in a layer a linear sits; servers decide by it."""

    ATTENTION = auto()
    KV_UP = auto()
    """kv_b_proj: a matrix product only in prefill that does not absorb it."""
    INDEXER = auto()
    """Queries of a sparse-attention indexer."""
    INDEXER_KEY = auto()
    """wk: a product of its own only where it is not fused with the bf16 weights_proj."""
    DENSE_MLP = auto()
    SHARED_EXPERTS = auto()
    EXPERTS = auto()
    DRAFT = auto()
    """A projection that only the draft (MTP) model has."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight shard [groups, n, k]; `parts` are the merged pieces of n, in order."""

    name: str
    role: Role
    _: KW_ONLY
    split: Split
    parts: tuple[int, ...]
    k: int
    layers: tuple[int, ...]
    groups: int = 1
    shard_key: str = "parallel.tp"
    """The option that sets the width, for messages."""
    source: str = HIDDEN
    """Whose output it reads: HIDDEN, ATTENDED or the name of a linear before it."""
    source_column: int = 0
    """The first of that output's columns that it reads."""
    is_checked: bool = True
    """Whether the server checks at load that no scale block is cut."""
    rows_per_token: int = 1
    """Rows that one token brings."""
    scheme: Scheme = PLAIN
    """How its weights are stored, as the chosen server sees it."""

    @property
    def n(self) -> int:
        """Rows of the weight shard."""
        return sum(self.parts)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a server would not start with this layout; `roles`: the linears whose sizes do not divide."""

    message: str
    roles: tuple[Role, ...] = ()


@dataclass(frozen=True, slots=True)
class NotDeepGemm:
    """A layer's matrix product that no DeepGEMM kernel serves, with the true reason."""

    layer: str
    reason: str


def column(width: int) -> Split:
    """COLUMN over more than one rank."""
    return Split.COLUMN if width > 1 else Split.REPLICATED


def row(width: int) -> Split:
    """ROW over more than one rank."""
    return Split.ROW if width > 1 else Split.REPLICATED


def block_errors(linear: Linear, block: tuple[int, int], *, last_part_exempt: bool = False) -> list[str]:
    """Why the server would refuse to load this shard: scale blocks must not be cut.

    A weight of one piece that every rank holds whole is not checked, so N = 2112 of qkv_a loads; merged pieces are,
    replicated or not. `last_part_exempt`: compressed-tensors leaves out the last piece of a replicated merge.

    Source: SGLang 0.5.23 quantization/fp8.py validate_block_quant_shapes and Fp8MoEMethod.create_fp8_moe_weight_,
    fp8_utils.py validate_fp8_block_shape for compressed-tensors.
    """
    if not linear.is_checked:
        return []
    block_n, block_k = block
    errors: list[str] = []
    is_whole = linear.split is Split.REPLICATED
    parts = linear.parts if len(linear.parts) > 1 or linear.split is Split.COLUMN else ()
    for part in dict.fromkeys(parts[:-1] if is_whole and last_part_exempt else parts):
        if part % block_n != 0:
            errors.append(_cut(linear, f"N {part}", block_n))
    if linear.split is Split.ROW and linear.k % block_k != 0:
        errors.append(_cut(linear, f"K {linear.k}", block_k))
    return errors


def _cut(linear: Linear, what: str, block: int) -> str:
    return (
        f"{linear.name}: {what} of one shard must be a multiple of the scale block {block}; "
        f"lower {linear.shard_key} (the server would refuse to load these weights)"
    )
