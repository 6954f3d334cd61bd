"""Where a run puts things: resolved once, handed on in a slot."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """Absolute folders of one run."""

    output: Path
    """What a server is pointed at."""
    store: Path
    """What every recipe of a machine shares."""

    @property
    def warm_cache(self) -> Path:
        """DeepGEMM's cache in the output."""
        return self.output / "deep_gemm"

    @property
    def tactics(self) -> Path:
        """FlashInfer's tactics in the output."""
        return self.output / "autotune"

    @property
    def scratch(self) -> Path:
        """Working folders."""
        return self.store / "scratch"

    @property
    def virtual_gpus(self) -> Path:
        """Built virtual GPUs."""
        return self.store / "virtual_gpu"

    @property
    def checkpoints(self) -> Path:
        """Configs that a server takes for checkpoints."""
        return self.store / "checkpoints"
