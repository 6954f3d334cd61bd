"""How one module's weights are stored and multiplied, as the chosen server decides it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Format(Enum):
    """The numbers of a weight and of what it is multiplied with."""

    PLAIN = "unquantised"
    FP8_BLOCK = "FP8 with a scale for each block"
    FP8_TENSOR = "FP8 with a scale for each tensor"
    FP8_CHANNEL = "FP8 with a scale for each channel"
    FP8_WEIGHT_ONLY = "FP8 weights, activations in the model's dtype"
    MXFP8 = "MXFP8"
    NVFP4 = "NVFP4"
    MXFP4 = "MXFP4"
    INT8 = "INT8"
    INT4 = "INT4 weights"
    INT4_FP8 = "INT4 weights, FP8 activations"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """The answer for one module of one layer."""

    format: Format
    text: str
    """What it is, for people, with the writer's own word: FP8 with 128x128 scale blocks (modelopt FP8_PB_WO)."""
    block: tuple[int, int] | None = None
    """(N, K) of one scale, for FP8_BLOCK and MXFP8 only."""
    method: str | None = None
    """The server's name of the method that serves it: fp8, compressed-tensors, modelopt_mixed; None for PLAIN."""
    refusal: str | None = None
    """Why the server would refuse to load this module; None when it loads."""


PLAIN = Scheme(format=Format.PLAIN, text="not quantised")
