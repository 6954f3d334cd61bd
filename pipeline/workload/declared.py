"""What the files of a checkpoint say of its quantisation, as written; servers differ in what they make of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Declared:
    """The raw files."""

    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """All of config.json, with `quantization_config` or `compression_config` at the top or in `text_config`."""
    hf_quant_config: Mapping[str, Any] | None = None
    """hf_quant_config.json beside it (ModelOpt's); None where there is none."""
