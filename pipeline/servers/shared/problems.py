"""A problem: one GEMM that a server launches, with every number of rows it can be launched with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum


class Kernel(StrEnum):
    """DeepGEMM entry points: by the names of SGLang's DeepGemmKernelType where it has one, else by DeepGEMM's own."""

    DENSE = "GEMM_NT_F8F8BF16"
    DENSE_BLOCK32 = "GEMM_NT_F8F8BF16_BLOCK32"
    DENSE_MXFP8 = "GEMM_NT_MXFP8"
    MASKED = "GROUPED_GEMM_NT_F8F8BF16_MASKED"
    CONTIGUOUS = "GROUPED_GEMM_NT_F8F8BF16_CONTIG"
    BF16_DENSE = "BF16_GEMM_NN"
    """Compiled only under deterministic algorithms; else the library hands it to cuBLASLt."""
    BF16_MASKED = "GROUPED_GEMM_NT_BF16_MASKED"
    BF16_CONTIGUOUS = "GROUPED_GEMM_NT_BF16_CONTIG"
    FP4_MASKED = "GROUPED_GEMM_NT_F8F4BF16_MASKED"
    FP4_CONTIGUOUS = "GROUPED_GEMM_NT_F8F4BF16_CONTIG"
    MQA_LOGITS = "FP8_MQA_LOGITS"
    """n heads of k; M queries."""
    PAGED_MQA_LOGITS = "FP8_PAGED_MQA_LOGITS"
    """n heads of k; M requests."""
    PAGED_MQA_METADATA = "PAGED_MQA_LOGITS_METADATA"
    """n and k are 1; M requests."""
    EINSUM = "FP8_EINSUM"
    """groups weights [n, k]; M tokens."""
    HC_PRENORM = "TF32_HC_PRENORM_GEMM"
    """n mixing weights over k columns of all residual streams; M tokens."""

    @property
    def is_contiguous(self) -> bool:
        """Whether M counts rows that must be multiples of the library's alignment."""
        return self in (Kernel.CONTIGUOUS, Kernel.BF16_CONTIGUOUS, Kernel.FP4_CONTIGUOUS)

    @property
    def is_masked(self) -> bool:
        """Whether each expert's rows come in a block of their own, and M is the expected number of them."""
        return self in (Kernel.MASKED, Kernel.BF16_MASKED, Kernel.FP4_MASKED)


Options = tuple[tuple[str, int | str], ...]


@dataclass(frozen=True, slots=True)
class MList:
    """Numbers of rows, as ascending ranges that do not overlap; expected_m for masked problems."""

    ranges: tuple[range, ...]

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    def __iter__(self) -> Iterator[int]:
        for part in self.ranges:
            yield from part

    @property
    def smallest(self) -> int:
        """The least M."""
        return self.ranges[0][0]

    @property
    def largest(self) -> int:
        """The greatest M; operands are sized by it."""
        return self.ranges[-1][-1]

    @classmethod
    def up_to(cls, largest: int) -> MList:
        """Every M from 1."""
        return cls((range(1, largest + 1),))

    @classmethod
    def of(cls, values: Iterable[int]) -> MList:
        """Pack ascending values into ranges."""
        ranges: list[range] = []
        for value in values:
            last = ranges[-1] if ranges else None
            if last is not None and len(last) == 1 and value > last[0]:
                ranges[-1] = range(last[0], value + 1, value - last[0])
            elif last is not None and value == last[-1] + last.step:
                ranges[-1] = range(last.start, value + 1, last.step)
            else:
                ranges.append(range(value, value + 1))
        return cls(tuple(ranges))

    def to_json(self) -> list[list[int]]:
        """[[start, stop, step], ...] with stop excluded."""
        return [[part.start, part.stop, part.step] for part in self.ranges]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One (kernel, N, K, groups) and why it is there."""

    kernel: Kernel
    n: int
    k: int
    groups: int
    m: MList
    linears: tuple[str, ...]
    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    rules: tuple[str, ...] = ()
    options: Options = ()
    """What else decides the kernel, by name: num_sms, next_n, num_splits, compiled_dims, psum."""
    warmup_calls: int | None = None
    """How many M the server itself would launch at start; None where that is the whole list, or not known."""

    @property
    def key(self) -> tuple[Kernel, int, int, int, Options]:
        """What makes two uses the same problem."""
        return self.kernel, self.n, self.k, self.groups, self.options

    @property
    def name(self) -> str:
        """Short name for tables and files, e.g. masked 4096x7168 g32."""
        groups = f" g{self.groups}" if self.groups > 1 else ""
        options = "".join(f" {name}={value}" for name, value in self.options)
        return f"{self.kernel.name.lower()} {self.n}x{self.k}{groups}{options}"


def merge(problems: Iterable[Problem]) -> list[Problem]:
    """One problem for each key, in order of first use; layers, ranks, rules and M lists are united."""
    merged: dict[tuple[Kernel, int, int, int, Options], Problem] = {}
    for problem in problems:
        before = merged.get(problem.key)
        merged[problem.key] = problem if before is None else _united(before, problem)
    return list(merged.values())


def _united(a: Problem, b: Problem) -> Problem:
    m = a.m if a.m == b.m else MList.of(sorted(set(a.m) | set(b.m)))
    return replace(
        a,
        m=m,
        linears=tuple(dict.fromkeys(a.linears + b.linears)),
        layers=tuple(sorted({*a.layers, *b.layers})),
        ranks=tuple(sorted({*a.ranks, *b.ranks})),
        rules=tuple(dict.fromkeys(a.rules + b.rules)),
    )
