"""Where every buffer lies in the one allocation, computed before anything is allocated; needs no torch.

Buffers whose phases never overlap share bytes, so the arena is as large as the largest phase, not as the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

from pipeline.arithmetic import round_up

# cudaMalloc's own alignment; the copy engine of sm_90 wants 16 bytes, vectorised kernels at most 128.
ALIGNMENT_BYTES = 256
GUARD_BYTES = 256
ITEM_BYTES = {
    "int64": 8,
    "int32": 4,
    "float32": 4,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "bool": 1,
}


class Content(Enum):
    """What a buffer is filled with when it is not one number."""

    UNSET = auto()
    """Nothing: a kernel writes it before another one reads it."""
    NORMAL = auto()
    """Numbers of the standard normal distribution."""
    FP8_BELOW_TWO = auto()
    """Random FP8 (e4m3) bytes, none of them NaN and none above 1.875."""
    WEIGHT_SCALES = auto()
    """Random scales near 1/64, so that a product of FP8 values stays near one."""
    POSITIONS = auto()
    """Row i holds i + 1: what the token at position i of a request attends to, itself included."""


@dataclass(frozen=True, slots=True)
class BufferSpec:
    """A buffer to reserve at the largest size any stage will slice. `phases` empty means the whole run."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    content: int | bool | Content = 0
    """What `Arena.refill` writes into it; one that lives for the whole run is filled when the arena is made."""
    rows_axis: int = 0
    """The axis that `rows` slices."""
    phases: frozenset[str] = frozenset()

    @property
    def num_bytes(self) -> int:
        """Bytes of the data, without its guard."""
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def is_live_in(self, phase: str) -> bool:
        """Whether its bytes are its own during the phase."""
        return not self.phases or phase in self.phases

    def meets(self, other: BufferSpec) -> bool:
        """Whether there is a time at which both are live."""
        return not self.phases or not other.phases or bool(self.phases & other.phases)


@dataclass(frozen=True, slots=True)
class Region:
    """A buffer's place: data at `offset`, its guard right behind the data."""

    spec: BufferSpec
    offset: int

    @property
    def guard_offset(self) -> int:
        """Where the guard begins."""
        return self.offset + self.spec.num_bytes

    @property
    def end(self) -> int:
        """First byte behind the guard."""
        return self.guard_offset + GUARD_BYTES


@dataclass(frozen=True, slots=True)
class Layout:
    """All regions; `arena_bytes` is what one allocation takes."""

    regions: tuple[Region, ...]

    @property
    def arena_bytes(self) -> int:
        """Size of the allocation."""
        return max((round_up(region.end, ALIGNMENT_BYTES) for region in self.regions), default=0)

    @property
    def phases(self) -> list[str]:
        """Every phase that a buffer names, in order of first use."""
        return list(dict.fromkeys(phase for region in self.regions for phase in sorted(region.spec.phases)))

    def phase_bytes(self, phase: str) -> int:
        """What the phase would allocate alone."""
        return sum(_footprint(region.spec) for region in self.regions if region.spec.is_live_in(phase))

    @property
    def sum_of_phase_bytes(self) -> int:
        """What the phases would allocate if each made its own buffers, as servers do."""
        return sum(self.phase_bytes(phase) for phase in self.phases) or sum(
            _footprint(region.spec) for region in self.regions
        )


def lay_out(specs: Sequence[BufferSpec]) -> Layout:
    """Place every buffer at the lowest offset that no buffer live at the same time covers, largest first.

    Raises ValueError when two buffers have one name.
    """
    names = [spec.name for spec in specs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"buffers named twice: {', '.join(twice)}")
    placed: list[Region] = []
    for spec in sorted(specs, key=lambda spec: -spec.num_bytes):
        placed.append(Region(spec, _lowest_free(spec, placed)))
    order = {name: index for index, name in enumerate(names)}
    return Layout(tuple(sorted(placed, key=lambda region: order[region.spec.name])))


def _lowest_free(spec: BufferSpec, placed: Sequence[Region]) -> int:
    offset = 0
    for region in sorted((region for region in placed if region.spec.meets(spec)), key=lambda region: region.offset):
        if offset + _footprint(spec) <= region.offset:
            break
        offset = max(offset, round_up(region.end, ALIGNMENT_BYTES))
    return offset


def _footprint(spec: BufferSpec) -> int:
    return round_up(spec.num_bytes + GUARD_BYTES, ALIGNMENT_BYTES)
