"""The one allocation of a run: typed views of it, bounds-checked rows, and guards that show an overrun."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch

from pipeline.buffers.contents import write_content
from pipeline.buffers.layout import GUARD_BYTES, Layout, Region
from pipeline.engine.errors import CapacityError, SlotError

GUARD_VALUE = 0xA5
INTACT = [GUARD_VALUE] * GUARD_BYTES


class Arena:
    """Views of `memory` [arena_bytes] uint8, one for each region of the layout.

    A buffer with phases may be used only inside `with arena.phase(...)`; its guard is laid on entry and checked on
    exit, because outside its phases the same bytes belong to others.
    """

    def __init__(self, layout: Layout, memory: torch.Tensor) -> None:
        assert memory.dtype is torch.uint8, "an arena is bytes"
        assert memory.numel() >= layout.arena_bytes, "memory is smaller than the layout"
        self.layout = layout
        self._memory = memory
        self._regions = {region.spec.name: region for region in layout.regions}
        self._views = {name: _view(memory, region) for name, region in self._regions.items()}
        self._phase: str | None = None
        self.broken_guards: list[str] = []
        """Buffers that something wrote past, in the order in which that was seen."""
        for region in layout.regions:
            if not region.spec.phases:
                self._guard(region).fill_(GUARD_VALUE)
                self.refill(region.spec.name)

    def __contains__(self, name: str) -> bool:
        return name in self._views

    def __getitem__(self, name: str) -> torch.Tensor:
        """The whole buffer; SlotError for an unknown name or outside the buffer's phases."""
        if name not in self._views:
            raise SlotError(f"the arena has no buffer {name!r}; it has {', '.join(self._views)}")
        spec = self._regions[name].spec
        if spec.phases and self._phase not in spec.phases:
            raise SlotError(f"buffer {name!r} belongs to {sorted(spec.phases)}, the phase now is {self._phase!r}")
        return self._views[name]

    def rows(self, name: str, n: int) -> torch.Tensor:
        """The first n rows of a buffer; CapacityError past its end, where slicing a tensor would give fewer."""
        whole = self[name]
        axis = self._regions[name].spec.rows_axis
        if not 0 <= n <= whole.shape[axis]:
            raise CapacityError(f"buffer {name!r} holds {whole.shape[axis]} rows, {n} asked; raise the batch it is for")
        return whole.narrow(axis, 0, n)

    @contextlib.contextmanager
    def phase(self, name: str) -> Generator[None]:
        """Own the buffers of this phase; overruns found at the end are added to `broken_guards`."""
        if self._phase is not None:
            raise SlotError(f"phase {name!r} cannot begin inside phase {self._phase!r}")
        if name not in self.layout.phases:
            raise SlotError(f"the arena has no phase {name!r}; it has {', '.join(self.layout.phases)}")
        self._phase = name
        live = [region for region in self.layout.regions if region.spec.is_live_in(name)]
        for region in live:
            if region.spec.phases:
                self._guard(region).fill_(GUARD_VALUE)
        try:
            yield
        finally:
            self._phase = None
            self._check(live)

    def check_guards(self) -> list[str]:
        """Check the guards that stand now, and return every buffer that was ever seen overrun."""
        self._check([region for region in self.layout.regions if not region.spec.phases])
        return self.broken_guards

    def refill(self, name: str) -> None:
        """Give a buffer the content that its spec names."""
        write_content(self[name], self._regions[name].spec.content)

    def addresses(self) -> dict[str, int]:
        """Where each buffer begins; these must not move during a run."""
        return {name: view.data_ptr() for name, view in self._views.items()}

    def _check(self, regions: list[Region]) -> None:
        for region in regions:
            name = region.spec.name
            # tolist makes no tensor: a check must not move the allocation counters that it stands beside.
            if name not in self.broken_guards and self._guard(region).tolist() != INTACT:
                self.broken_guards.append(name)

    def _guard(self, region: Region) -> torch.Tensor:
        return self._memory.narrow(0, region.guard_offset, GUARD_BYTES)


def _view(memory: torch.Tensor, region: Region) -> torch.Tensor:
    raw = memory.narrow(0, region.offset, region.spec.num_bytes)
    return raw.view(getattr(torch, region.spec.dtype)).view(region.spec.shape)
