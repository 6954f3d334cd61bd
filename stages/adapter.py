"""Turn the runner's buffers, decode graph or eager, into the set that a dummy run needs."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.engine.context import View
from pipeline.engine.stage import Result, Stage
from pipeline.slots import BUFFER_PLAN, DECODE_BUFFERS, RESERVED


@dataclass(kw_only=True)
class Adapter(Stage):
    """The recipe's `adapter` decides whose buffers; an absent field is absent in every view."""

    reads = (BUFFER_PLAN, RESERVED)
    writes = (DECODE_BUFFERS,)

    def run(self, ctx: View) -> Result:
        """Views of the arena; nothing is allocated."""
        from pipeline.buffers.adapters import from_arena

        buffers = from_arena(ctx[BUFFER_PLAN].size, ctx[RESERVED].arena)
        ctx[DECODE_BUFFERS] = buffers
        size = buffers.size
        return Result(f"{size.kind.name}: {len(buffers.fields)} fields, at most {size.max_batch} requests")
