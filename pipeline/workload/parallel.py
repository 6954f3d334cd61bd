"""The layout of a deployment over ranks: widths, identities and the split of layers over the pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class A2A(Enum):
    """SGLang's moe_a2a_backend: how tokens reach the ranks that hold their experts."""

    none = "none"
    deepep = "deepep"
    deepep_v2 = "deepep_v2"
    mooncake = "mooncake"
    nixl = "nixl"
    mori = "mori"
    flashinfer = "flashinfer"
    flashinfer_megamoe = "flashinfer_megamoe"
    pplx = "pplx"
    megamoe = "megamoe"

    @property
    def is_used(self) -> bool:
        """Whether there is one at all; each of them spans the whole tensor-parallel group."""
        return self is not A2A.none


@dataclass(kw_only=True, slots=True)
class Parallel:
    """Sizes as the server's flags give them."""

    name: str = ""
    """The file's name in conf/parallel."""
    tp: int = 1
    """Tensor-parallel size: ranks at one place of the pipeline."""
    pp: int = 1
    """Pipeline-parallel size: places of the pipeline, each with layers of its own."""
    ep: int = 1
    """Expert-parallel size; an all-to-all backend makes it tp."""
    attn_dp: int = 1
    """Data-parallel groups of attention among these ranks."""
    attn_cp: int = 1
    """Context-parallel size of attention."""
    moe_dp: int = 1
    """Data-parallel groups of the experts."""
    moe_dense_tp_size: int | None = None
    """Width of dense feed-forward layers: None means tp, 1 means replicated."""
    moe_a2a_backend: A2A = A2A.none
    """The all-to-all backend of the experts."""
    layer_partition: list[int] = field(default_factory=list[int])
    """Layers at each place of the pipeline, written by hand; empty means the server's own rule."""

    @property
    def effective_ep(self) -> int:
        """Expert-parallel size after the all-to-all backend has had its say."""
        return self.tp if self.moe_a2a_backend.is_used else self.ep

    @property
    def spreads_experts(self) -> bool:
        """Whether a rank holds only a part of the experts."""
        return self.effective_ep > 1

    @property
    def attn_tp(self) -> int:
        """Ranks that share one attention layer (tpA): tp / (attn_dp * attn_cp)."""
        return self.tp // (self.attn_dp * self.attn_cp)

    @property
    def moe_tp(self) -> int:
        """Ranks that share one expert (tpM): tp / (ep * moe_dp)."""
        return self.tp // (self.effective_ep * self.moe_dp)

    @property
    def dense_tp(self) -> int:
        """Ranks that share one dense feed-forward layer."""
        return 1 if self.moe_dense_tp_size == 1 else self.tp

    @property
    def num_ranks(self) -> int:
        """Ranks of the whole deployment."""
        return self.tp * self.pp

    def ranks_at(self, place: int) -> tuple[int, ...]:
        """Global ranks at one place of the pipeline: pp is the outer dimension."""
        return tuple(range(place * self.tp, (place + 1) * self.tp))

    def config_errors(self) -> list[str]:
        """Sizes below one and identities that do not hold, one line each."""
        sizes = ("tp", "pp", "ep", "attn_dp", "attn_cp", "moe_dp")
        errors = [
            f"parallel.{name} must be at least 1, got {getattr(self, name)}"
            for name in sizes
            if getattr(self, name) < 1
        ]
        if errors:
            return errors
        errors += self._identity("attn_dp * attn_cp", self.attn_dp * self.attn_cp, "parallel.attn_dp")
        errors += self._identity("ep * moe_dp", self.effective_ep * self.moe_dp, "parallel.ep")
        if self.moe_dense_tp_size not in (None, 1):
            errors.append(
                f"parallel.moe_dense_tp_size must be null or 1, got {self.moe_dense_tp_size}; "
                "SGLang 0.5.23 re-shards dense layers for no other value"
            )
        return errors

    def _identity(self, what: str, product: int, key: str) -> list[str]:
        if self.tp % product == 0:
            return []
        return [f"parallel.tp {self.tp} must be a multiple of {what} = {product}; change {key} or parallel.tp"]


def split_layers_last(num_layers: int, pp: int) -> list[int]:
    """Layers at each place of the pipeline as SGLang splits them: the last `num_layers % pp` places get one more."""
    base, extra = divmod(num_layers, pp)
    return [base + (place >= pp - extra) for place in range(pp)]


def partition_errors(parallel: Parallel, num_layers: int) -> list[str]:
    """What is wrong with the split of `num_layers` over the pipeline, one line each."""
    if parallel.pp > num_layers:
        return [f"parallel.pp {parallel.pp} exceeds the model's {num_layers} layers; lower parallel.pp"]
    partition = parallel.layer_partition
    if not partition or parallel.pp == 1:
        return []
    errors: list[str] = []
    if len(partition) != parallel.pp:
        errors.append(f"parallel.layer_partition has {len(partition)} entries, parallel.pp is {parallel.pp}")
    if sum(partition) != num_layers or min(partition) < 1:
        errors.append(
            f"parallel.layer_partition {partition} must hold numbers above 0 that sum to the model's "
            f"{num_layers} layers, got {sum(partition)}"
        )
    return errors
