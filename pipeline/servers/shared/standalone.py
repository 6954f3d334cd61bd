"""Kernels that no linear is behind: a server launches them beside the products of a layer's weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.arithmetic import ceil_div
from pipeline.servers.rules import Deployment
from pipeline.servers.shared.problems import Kernel, MList, Options, Problem

# SGLang 0.5.23 kernels/ops/layernorm/mhc.py _compute_num_split_for_mhc_pre; vLLM 0.33 models/deepseek_v4/nvidia.
MIXING_BLOCK = 64
LEAST_BLOCKS_PER_SPLIT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StandaloneKernel:
    """One kernel, at which M, by which rule; sizes mean what `Kernel` says of each."""

    kernel: Kernel
    n: int
    k: int
    groups: int = 1
    m: MList
    options: Options = ()
    rule: str

    def problem(self, name: str, layers: Iterable[int], ranks: Sequence[int] = ()) -> Problem:
        """The problem of these layers; no server visits it at its own start."""
        return Problem(
            kernel=self.kernel,
            n=self.n,
            k=self.k,
            groups=self.groups,
            m=self.m,
            linears=(name,),
            layers=tuple(sorted(layers)),
            ranks=tuple(ranks),
            rules=(self.rule,),
            options=self.options,
            warmup_calls=0,
        )


def residual_mixing(deployment: Deployment[Any], tokens: MList, rule: str) -> list[StandaloneKernel]:
    """tf32_hc_prenorm_gemm is specialised by the number of splits, which falls as the tokens grow."""
    streams = deployment.facts.streams
    k = streams * deployment.facts.hidden
    m_of_splits: dict[int, list[int]] = {}
    for m in tokens:
        m_of_splits.setdefault(mixing_splits(m, k, deployment.target.num_sms), []).append(m)
    return [
        StandaloneKernel(
            kernel=Kernel.HC_PRENORM,
            n=streams * (2 + streams),
            k=k,
            m=MList.of(values),
            options=(("num_splits", splits),),
            rule=rule,
        )
        for splits, values in m_of_splits.items()
    ]


def mixing_splits(tokens: int, k: int, num_sms: int) -> int:
    """How many parts of K the mixing product is split into."""
    blocks = ceil_div(k, MIXING_BLOCK)
    return max(1, min(num_sms // max(1, ceil_div(tokens, MIXING_BLOCK)), blocks // LEAST_BLOCKS_PER_SPLIT))
