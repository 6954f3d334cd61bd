"""What a stage measured, typed, for report.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(kw_only=True)
class Figures:
    """Subclasses have a field for each figure; None means not measured."""

    section: ClassVar[str] = ""
    """The report's section that they go to; several kinds of figures may share one."""
