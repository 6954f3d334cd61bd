"""What a server's quantisation resolver answers; each server's folder has one with that server's own matching."""

from __future__ import annotations

from enum import Enum, auto
from typing import Protocol

from pipeline.workload.scheme import Scheme


class ModuleKind(Enum):
    """What a server builds at a module's path; methods differ by it."""

    LINEAR = auto()
    EXPERTS = auto()
    """The routed experts of a layer, as one module."""
    LM_HEAD = auto()


class Quantization(Protocol):
    """One checkpoint under one server's flags."""

    @property
    def method(self) -> str | None:
        """The server's name of the checkpoint's method; None for a checkpoint that is not quantised."""
        ...

    @property
    def errors(self) -> tuple[str, ...]:
        """Why the server would not load this checkpoint at all, or what here is not understood; a line each."""
        ...

    def scheme(self, module: str, kind: ModuleKind = ModuleKind.LINEAR) -> Scheme:
        """How the module at this path is stored; `module` is the server's own prefix, merged names included.

        model.layers.0.self_attn.qkv_proj, model.layers.3.mlp.experts, lm_head.
        """
        ...
