"""A problem on its way into the worker: the JSON that discovery writes, and what the child makes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.servers.shared.problems import Kernel, MList, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """What decides the launches of one problem; where the problem comes from stays with the parent."""

    kernel: Kernel
    n: int
    k: int
    groups: int
    m: MList
    options: Mapping[str, Any]

    @property
    def max_m(self) -> int:
        """Rows of the operands, which are made once for all M."""
        return self.m.largest

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> LaunchSpec:
        """One entry of `problems_json`."""
        return cls(
            kernel=Kernel(content["kernel"]),
            n=content["n"],
            k=content["k"],
            groups=content["groups"],
            m=MList(tuple(range(*part) for part in content["m"])),
            options=content["options"],
        )


def problems_json(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    """The problems as the worker reads them."""
    return [
        {
            "kernel": problem.kernel.value,
            "n": problem.n,
            "k": problem.k,
            "groups": problem.groups,
            "m": problem.m.to_json(),
            "options": dict(problem.options),
        }
        for problem in problems
    ]
