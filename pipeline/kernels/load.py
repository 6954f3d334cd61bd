"""The kernels of a device; imported when they are asked for, because a plan needs neither torch nor a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.recipe import DeviceKind

if TYPE_CHECKING:
    from pipeline.kernels.protocol import Kernels


def load_kernels(kind: DeviceKind, folder: Path) -> Kernels:
    """The kernels; `folder` holds what this process compiles itself."""
    if kind is DeviceKind.cuda:
        # DeepGEMM reads this at its first kernel. The baked cache is linked into it, so the forward runs over what
        # this recipe publishes and can add nothing to it.
        cache_dir = (folder / "deep_gemm").absolute()
        os.environ["DG_JIT_CACHE_DIR"] = str(cache_dir)
        from pipeline.kernels.cuda import CudaKernels

        return CudaKernels(cache_dir)
    from pipeline.kernels.reference import ReferenceKernels

    return ReferenceKernels()
