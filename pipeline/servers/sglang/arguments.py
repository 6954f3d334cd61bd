"""The arguments of `sglang serve` for a recipe: its layout, its flags, then server.args as it was written."""

from __future__ import annotations

import shlex
from pathlib import Path

from pipeline.arithmetic import ceil_div
from pipeline.servers.sglang.flags import SglangFlags
from pipeline.workload.parallel import A2A, Parallel

GPUS_OF_A_NODE = 8
# Nobody connects to it: the ranks of the other nodes are not started.
RENDEZVOUS = "127.0.0.1:25000"
NO_WEIGHTS = ("--load-format", "dummy", "--skip-tokenizer-init")


def server_arguments(flags: SglangFlags, parallel: Parallel, checkpoint: Path) -> list[str]:
    """server.args comes last, because argparse keeps the last value of an argument."""
    return [
        "--model-path",
        str(checkpoint),
        *NO_WEIGHTS,
        *layout_arguments(parallel),
        *flags.arguments(),
        *shlex.split(flags.args or ""),
    ]


def layout_arguments(parallel: Parallel) -> list[str]:
    """Sizes that differ from one, and the number of nodes when the ranks need more than one."""
    sizes = {
        "--tp-size": parallel.tp,
        "--pp-size": parallel.pp,
        "--ep-size": parallel.ep,
        "--dp-size": parallel.attn_dp,
        "--attn-cp-size": parallel.attn_cp,
        "--moe-dp-size": parallel.moe_dp,
    }
    arguments = [word for flag, size in sizes.items() if size > 1 for word in (flag, str(size))]
    if parallel.moe_dense_tp_size == 1:
        arguments += ["--moe-dense-tp-size", "1"]
    if parallel.attn_dp > 1:
        arguments.append("--enable-dp-attention")
    if parallel.moe_a2a_backend is not A2A.none:
        arguments += ["--moe-a2a-backend", parallel.moe_a2a_backend.value]
    if parallel.num_ranks > GPUS_OF_A_NODE:
        nodes = ceil_div(parallel.num_ranks, GPUS_OF_A_NODE)
        arguments += ["--nnodes", str(nodes), "--dist-init-addr", RENDEZVOUS]
    return arguments
