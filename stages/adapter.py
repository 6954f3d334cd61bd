"""Turn the runner's buffers, decode graph or eager, into the set that a dummy run needs."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.engine.context import View
from pipeline.engine.stage import Result, Skipped, Stage
from pipeline.slots import BUFFER_PLAN, DECODE_BUFFERS, LIVE_BUFFERS, NO_RULES, RESERVED


@dataclass(kw_only=True)
class Adapter(Stage):
    """The recipe's `adapter` decides whose buffers; an absent field is absent in every view.

    A caller inside a server that seeds LIVE_BUFFERS has its own buffers adopted: checked, never copied.
    """

    reads = (BUFFER_PLAN, RESERVED)
    may_read = (NO_RULES, LIVE_BUFFERS)
    writes = (DECODE_BUFFERS,)
    allocates_nothing = True

    def run(self, ctx: View) -> Result | Skipped:
        """Views of the arena, or of the live buffers; nothing is allocated. SlotError when those do not fit."""
        if (no_rules := ctx.get(NO_RULES)) is not None:
            return Skipped(no_rules.nothing_to_run)
        from pipeline.buffers.adapters import adopt, from_arena

        size = ctx[BUFFER_PLAN].size
        owner = ctx.get(LIVE_BUFFERS)
        buffers = from_arena(size, ctx[RESERVED].arena) if owner is None else adopt(size, owner)
        ctx[DECODE_BUFFERS] = buffers
        whose = size.kind.name if owner is None else "adopted"
        return Result(f"{whose}: {len(buffers.fields)} fields, at most {size.max_batch} requests")
