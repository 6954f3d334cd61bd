"""The stages, by name: the table of contents of the product.

Third-party packages add theirs through the entry point group `preheat.stages`.
"""

from __future__ import annotations

from importlib.metadata import entry_points

from pipeline.engine.stage import Stage
from stages.adapter import Adapter
from stages.align import Align
from stages.allocate import Allocate
from stages.ask import Ask
from stages.autotune import Autotune
from stages.export import Export
from stages.find_server import FindServer
from stages.find_toolkit import FindToolkit
from stages.forward import Forward
from stages.plan import Plan
from stages.prove import Prove
from stages.published import Published
from stages.sweep import Sweep
from stages.verify import Verify

STAGES: dict[str, type[Stage]] = {
    "plan": Plan,
    "allocate": Allocate,
    "adapter": Adapter,
    "align": Align,
    "find_toolkit": FindToolkit,
    "find_server": FindServer,
    "ask": Ask,
    "sweep": Sweep,
    "published": Published,
    "forward": Forward,
    "autotune": Autotune,
    "verify": Verify,
    "prove": Prove,
    "export": Export,
}


def all_stages() -> dict[str, type[Stage]]:
    """The table above and what installed packages add to it; a name of ours cannot be replaced."""
    added = {point.name: point.load() for point in entry_points(group="preheat.stages") if point.name not in STAGES}
    return STAGES | added
