"""Count what a stage allocates on the CPU, where torch's allocator keeps no counters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class AllocationMeter(TorchDispatchMode):
    """Counts the bytes of new tensors, except those that a kernel makes for itself.

    The CPU allocator of torch keeps no counters. On a GPU a kernel has registers and shared memory where this
    reference has temporaries, so those are not the stage's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counted_bytes = 0
        self.inside_kernel = 0

    @property
    def allocated_bytes(self) -> int | None:
        """Bytes counted so far."""
        return self.counted_bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, then count the storages in its result that no argument had."""
        result = func(*args, **(kwargs or {}))
        if not self.inside_kernel:
            known = {_storage(tensor) for tensor in _tensors((args, kwargs))}
            new = {_storage(tensor): tensor for tensor in _tensors(result) if _storage(tensor) not in known}
            self.counted_bytes += sum(tensor.untyped_storage().nbytes() for tensor in new.values())
        return result


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _tensors(value)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
