"""Start the installed server on the virtual GPU, rank by rank, and learn what it asks its compilers for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.asking.caches import FOLDER, entries, is_covered, write_flashinfer_provider
from pipeline.asking.checkpoint import write_checkpoint
from pipeline.asking.compare import Difference, compare
from pipeline.asking.flags import environment_of_flags, server_arguments, variants
from pipeline.asking.installed import find_server
from pipeline.asking.layout import Asked, Progress, ask_digest, ask_in, recall
from pipeline.asking.start import Starter
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.context import View
from pipeline.engine.errors import ConfigError, HostError
from pipeline.engine.events import Reporter
from pipeline.engine.host import require_writable
from pipeline.engine.stage import Resource, Result, Skipped, Stage
from pipeline.engine.tables import Table
from pipeline.recipe import Mode, Recipe
from pipeline.slots import ASKED, CHILDREN, EVENTS, RECIPE, WORKLOAD, AskedServer
from pipeline.virtual_gpu.build import build

NEEDED_BYTES = 1 << 30


@dataclass(kw_only=True)
class Ask(Stage):
    """Uses CPU cores only. Every cache but DeepGEMM's is filled for real on the way; DeepGEMM's kernels go to sweep."""

    limit_s: int = 1200
    """Seconds that one start may take, its compilers included; after that it is ended and its stack is shown."""

    reads = (RECIPE, EVENTS, CHILDREN, WORKLOAD)
    writes = (ASKED,)
    resource = Resource.CORES
    section = "server"
    figures = (
        "version",
        "arguments",
        "starts",
        "asked_again",
        "problems",
        "rules_only",
        "server_only",
        "caches",
        "cute_dsl",
        "autotune_keys",
        "seconds_longest_start",
        "peak_bytes",
        "tokens_answered",
        "faults",
    )

    def problems(self) -> list[str]:
        """A limit that leaves no time to start."""
        return [f"ask.limit_s must be at least 1, got {self.limit_s}"] if self.limit_s < 1 else []

    def run(self, ctx: View) -> Result | Skipped:
        """HostError without the tested server; ConfigError with its own message for arguments that it refuses.

        When a start ended early, what was asked until then is baked all the same, and `sweep` ends with exit code 6.
        """
        recipe = ctx[RECIPE]
        if not recipe.discovery.asks_server:
            return Skipped("discovery=rules derives the list; discovery=server or both asks the installed server")
        if recipe.server.name != "sglang":
            raise ConfigError(f"discovery={recipe.discovery.value} can start sglang, not {recipe.server.name}")
        starter = make_starter(recipe, ctx[CHILDREN], self.limit_s)
        checkpoint, ways = ways_to_start(recipe)
        variables = environment_of_flags(recipe)
        if recipe.mode is Mode.verify:
            ctx[ASKED] = AskedServer(starter, ways, variables, None)
            return Skipped("mode=verify asks nothing new; `prove` starts the server over what is there")
        require_writable(starter.cache_dir, key="output.dir", needed_bytes=NEEDED_BYTES)
        root = Path(recipe.store.dir).absolute()
        progress = Reporter(ctx[EVENTS], "ask")
        digest = ask_digest(starter, ways, checkpoint)
        asked = recall(root, digest)
        # The list is remembered in the store; the other caches are in this output directory, or they are not.
        if asked is None or not is_covered(asked.there, entries(starter.cache_dir)):
            places = Progress(root / "scratch", lambda a, b: progress("% of the requests served", a, b))
            asked = ask_in(root, digest, starter, ways, variables, places)
        ctx[ASKED] = AskedServer(starter, ways, variables, asked)
        write_flashinfer_provider(Path(recipe.output.dir).absolute(), starter.server, f"sm{recipe.target.sm}a")
        differences = compare(ctx[WORKLOAD].problems, asked)
        return Result(summary(asked, differences), figures_of(recipe, starter, asked, differences))


def make_starter(recipe: Recipe, children: Children, limit_s: float) -> Starter:
    """The installed server on the virtual GPU of this recipe; HostError when one of them cannot be had."""
    server = find_server(recipe.server.python)
    toolkit = find_toolkit(recipe.toolkit.cuda_home)
    toolkit.require(recipe.target)
    gpu = build(recipe.target, cache_dir=Path(recipe.store.dir).absolute() / "virtual_gpu", cuda_home=toolkit.cuda_home)
    if not (gpu.folder / "libvnccl.so").exists():
        raise HostError(
            "discovery=server needs nccl.h and the headers of cuBLAS to build the virtual GPU for a whole server; "
            "pip install -r requirements.txt brings them with torch"
        )
    return Starter(server, gpu, toolkit, children, Path(recipe.output.dir).absolute() / FOLDER, limit_s)


def ways_to_start(recipe: Recipe) -> tuple[Path, dict[str, list[str]]]:
    """(the checkpoint's folder, the arguments of each variant by its name)."""
    checkpoint = write_checkpoint(recipe.model, Path(recipe.store.dir).absolute() / "checkpoints")
    return checkpoint, variants(recipe, server_arguments(recipe, checkpoint))


def figures_of(recipe: Recipe, starter: Starter, asked: Asked, differences: list[Difference]) -> dict[str, Any]:
    """For the report; `reused` entries were in the output directory before."""
    caches = {
        name: {"asked": len(there), "compiled": new, "reused": len(there) - new}
        for name, there in asked.there.items()
        for new in [asked.compiled[name] if asked.is_new else 0]
    }
    return {
        "version": starter.server.version,
        "arguments": server_arguments(recipe, Path("CHECKPOINT")),
        "starts": list(asked.starts),
        "asked_again": asked.is_new,
        "problems": len(asked.problems),
        "rules_only": named_by("rules", differences),
        "server_only": named_by("server", differences),
        "caches": caches,
        "cute_dsl": asked.cute_dsl,
        "autotune_keys": asked.autotune_keys,
        "seconds_longest_start": asked.seconds if asked.is_new else None,
        "peak_bytes": asked.peak_bytes,
        "tokens_answered": asked.tokens_answered,
        "faults": list(asked.faults),
    }


def summary(asked: Asked, differences: list[Difference]) -> str:
    """One line: how much was asked, and how it compares with the rules."""
    by = Counter(line.named_by for line in differences)
    how = f"{len(asked.starts)} starts" if asked.is_new else "remembered"
    ended = "; INCOMPLETE: a start ended early" if asked.faults else ""
    modules = ", ".join(f"{len(there)} {name}" for name, there in asked.there.items() if there)
    if asked.cute_dsl:
        modules += f", {len(asked.cute_dsl)} of CuTe-DSL, which every start compiles again"
    if asked.autotune_keys:
        modules += f", {len(asked.autotune_keys)} autotune keys, to be tuned on the card"
    return (
        f"{how}: {len(asked.problems)} DeepGEMM problems, {modules}; {asked.tokens_answered} tokens answered; "
        f"rules and server agree on {by['both']}, rules alone {by['rules']}, server alone {by['server']}{ended}"
    )


def named_by(who: str, differences: list[Difference]) -> list[dict[str, str]]:
    """The problems that only one of the two names, for the report."""
    return [{"problem": line.name, "where": line.where} for line in differences if line.named_by == who]


def difference_table(figures: Mapping[str, Any]) -> Table | None:
    """The same for people; None when rules and server name the same."""
    table = Table("Rules against server", ("problem", "named by", "where"))
    rows = [(line, who) for who in ("rules", "server") for line in figures.get(f"{who}_only") or ()]
    for line, who in rows:
        table.add(line["problem"], who, line["where"])
    return table if rows else None
