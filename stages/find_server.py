"""Find the installed server and how it is started for this recipe."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.children import Children
from pipeline.engine.context import View
from pipeline.engine.errors import ConfigError, HostError
from pipeline.engine.stage import Result, Skipped, Stage
from pipeline.places import Places
from pipeline.recipe import Recipe
from pipeline.servers.protocol import AskableServer
from pipeline.servers.registry import SERVERS
from pipeline.servers.shared.checkpoint import write_checkpoint
from pipeline.servers.shared.inquiry import Inquiry
from pipeline.servers.shared.installed import find_server
from pipeline.servers.shared.start import Starter
from pipeline.slots import CHILDREN, INQUIRY, PLACES, RECIPE, TOOLKIT, VIRTUAL_GPU
from pipeline.virtual_gpu.build import VirtualGpu


@dataclass(kw_only=True)
class FindServer(Stage):
    """With discovery=server or both; the server is found, not started."""

    reads = (RECIPE, PLACES, CHILDREN, TOOLKIT, VIRTUAL_GPU)
    writes = (INQUIRY,)

    def run(self, ctx: View) -> Result | Skipped:
        """HostError without the tested server, or where the virtual GPU cannot hold a whole server."""
        recipe = ctx[RECIPE]
        if not recipe.discovery.asks_server:
            return Skipped("discovery=rules derives the list; discovery=server or both asks the installed server")
        inquiry = prepare_inquiry(recipe, ctx[PLACES], ctx[TOOLKIT], ctx[VIRTUAL_GPU], ctx[CHILDREN])
        ctx[INQUIRY] = inquiry
        server = inquiry.starter.server
        return Result(f"{recipe.server.name} {server.version} in {server.python}")

    def config_errors(self, recipe: Recipe) -> list[str]:
        """A server that cannot be asked."""
        try:
            if recipe.discovery.asks_server and recipe.server.name in SERVERS:
                require_askable(recipe)
        except ConfigError as error:
            return error.lines
        return []


def prepare_inquiry(recipe: Recipe, places: Places, toolkit: Toolkit, gpu: VirtualGpu, children: Children) -> Inquiry:
    """Everything that asking the recipe's server needs; HostError when the server or the virtual GPU is not enough."""
    require_whole_server(gpu)
    askable = require_askable(recipe)
    starter = Starter(
        askable=askable,
        server=find_server(askable, recipe.server.python),
        deep_gemm_variable=SERVERS[recipe.server.name].deep_gemm_variable,
        gpu=gpu,
        toolkit=toolkit,
        children=children,
        cache_dir=places.output / askable.caches.folder,
        limit_s=recipe.server.start_limit_s,
    )
    checkpoint = write_checkpoint(recipe.model, places.checkpoints)
    return Inquiry(
        starter=starter,
        variants=askable.variants(recipe.server, recipe.parallel, checkpoint),
        variables=askable.variables(recipe.model, recipe.server, recipe.parallel),
        checkpoint=checkpoint,
        scratch_dir=places.scratch,
    )


def require_askable(recipe: Recipe) -> AskableServer:
    """How the recipe's server is asked; ConfigError when there are only rules for it."""
    askable = SERVERS[recipe.server.name].askable
    if askable is None:
        names = [name for name, server in SERVERS.items() if server.askable is not None]
        raise ConfigError(
            f"discovery={recipe.discovery.value} can start {' or '.join(names)}, not {recipe.server.name}; use "
            "discovery=rules"
        )
    return askable


def require_whole_server(gpu: VirtualGpu) -> None:
    """HostError when headers were missing that the virtual GPU needs for a whole server."""
    if not (gpu.folder / "libvnccl.so").exists():
        raise HostError(
            "discovery=server needs nccl.h and the headers of cuBLAS to build the virtual GPU for a whole server; "
            "pip install -r requirements.txt brings them with torch"
        )
