"""One matrix product of a layer on one rank, before a server decides which kernel runs it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Split(Enum):
    """How a weight is spread over the ranks that share it."""

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
    DENSE_MLP = auto()
    SHARED_EXPERTS = auto()
    EXPERTS = auto()


@dataclass(frozen=True, slots=True)
class Linear:
    """A weight shard [groups, n, k]; `parts` are the merged pieces of n, in order."""

    name: str
    role: Role
    split: Split
    parts: tuple[int, ...]
    k: int
    layers: tuple[int, ...]
    groups: int = 1
    shard_key: str = "parallel.tp"
    """The option that sets the width, for messages."""

    @property
    def n(self) -> int:
        """Rows of the weight shard."""
        return sum(self.parts)


def block_problems(linear: Linear, block: tuple[int, int]) -> list[str]:
    """Why the server would refuse to load this shard: scale blocks must not be cut.

    Source: SGLang 0.5.23 quantization/fp8_utils.py validate_fp8_block_shape and fp8.py Fp8MoEMethod.create_weights.
    A replicated weight is exempt in its last part, so N = 2112 of qkv_a loads.
    """
    block_n, block_k = block
    found: list[str] = []
    checked = linear.parts[:-1] if linear.split is Split.REPLICATED else linear.parts
    for part in dict.fromkeys(checked):
        if part % block_n != 0:
            found.append(_cut(linear, f"N {part}", block_n))
    if linear.split is not Split.REPLICATED and linear.k % block_k != 0:
        found.append(_cut(linear, f"K {linear.k}", block_k))
    return found


def _cut(linear: Linear, what: str, block: int) -> str:
    return (
        f"{linear.name}: {what} of one shard must be a multiple of the scale block {block}; "
        f"lower {linear.shard_key} (the server would refuse to load these weights)"
    )
