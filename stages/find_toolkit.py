"""Find the CUDA compiler once, and build the virtual GPU of the target."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pipeline.deepgemm.discovery import Discoverer
from pipeline.deepgemm.nvcc_limit import require_nvcc_of_library
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.context import View
from pipeline.engine.host import require_writable
from pipeline.engine.stage import Result, Stage
from pipeline.slots import CHILDREN, DISCOVERER, PLACES, RECIPE, TOOLKIT, VIRTUAL_GPU
from pipeline.virtual_gpu.build import build


@dataclass(kw_only=True)
class FindToolkit(Stage):
    """`toolkit.cuda_home` and `toolkit.deep_gemm` choose; every later stage uses what this one hands on."""

    reads = (RECIPE, PLACES, CHILDREN)
    writes = (TOOLKIT, VIRTUAL_GPU, DISCOVERER)

    def run(self, ctx: View) -> Result:
        """HostError without deep_gemm, a recent enough nvcc, a C compiler, CUDA headers, or a store to write to."""
        recipe = ctx[RECIPE]
        places = ctx[PLACES]
        home = recipe.toolkit.deep_gemm
        toolkit = find_toolkit(recipe.toolkit.cuda_home)
        toolkit.require(recipe.target)
        # Workers import the package only later, in every shard.
        require_nvcc_of_library(toolkit, home)
        require_writable(places.store, key="store.dir", needed_bytes=0)
        gpu = build(recipe.target, cache_dir=places.virtual_gpus, cuda_home=toolkit.cuda_home)
        deep_gemm = None if home is None else str(Path(home).absolute())
        ctx[TOOLKIT] = toolkit
        ctx[VIRTUAL_GPU] = gpu
        ctx[DISCOVERER] = Discoverer(gpu, toolkit, ctx[CHILDREN], places.scratch, deep_gemm=deep_gemm)
        return Result(f"{toolkit.describe()}; virtual {recipe.target.product}")
