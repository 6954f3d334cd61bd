"""Choose the batch of every dummy run: the largest that the buffers hold, a multiple of every parallel axis."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.buffers.decode_set import aligned_batch
from pipeline.engine.context import View
from pipeline.engine.errors import CapacityError
from pipeline.engine.stage import Result, Skipped, Stage
from pipeline.slots import BATCH, DECODE_BUFFERS, NO_RULES, AlignedBatch


@dataclass(kw_only=True)
class Align(Stage):
    """Rounds up with one lcm; eager autotune runs use the same batch."""

    batch: int | None = None
    """Requests of a dummy run before rounding; None means the largest batch."""

    reads = (DECODE_BUFFERS,)
    may_read = (NO_RULES,)
    writes = (BATCH,)
    allocates_nothing = True

    def config_errors(self, recipe: object) -> list[str]:
        """A batch below one."""
        return (
            [f"align.batch must be at least 1, got {self.batch}"] if self.batch is not None and self.batch < 1 else []
        )

    def run(self, ctx: View) -> Result | Skipped:
        """CapacityError when the rounded batch exceeds the buffers."""
        if (no_rules := ctx.get(NO_RULES)) is not None:
            return Skipped(no_rules.nothing_to_run)
        size = ctx[DECODE_BUFFERS].size
        wanted = size.max_batch if self.batch is None else self.batch
        requests = aligned_batch(wanted, size)
        if requests > size.max_batch:
            raise CapacityError(
                f"align.batch {wanted} rounds up to {requests}, the buffers hold {size.max_batch}; lower align.batch"
            )
        ctx[BATCH] = AlignedBatch(requests=requests, multiple=size.multiple)
        return Result(f"{requests} requests, a multiple of {size.multiple}")
