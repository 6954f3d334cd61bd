"""The server's own arguments for a recipe: its layout and flags, then server.args as it was written."""

from __future__ import annotations

import shlex
from pathlib import Path

from pipeline.recipe import Recipe
from pipeline.workload.hf_config import read_config
from pipeline.workload.parallel import A2A, Parallel
from pipeline.workload.servers import AttentionBackend, DenseBackend, FusedShared, MoeRunner, PdRole, Server

GPUS_OF_A_NODE = 8
# Nobody connects to it: the other nodes' ranks are played.
RENDEZVOUS = "127.0.0.1:25000"
NO_WEIGHTS = ("--load-format", "dummy", "--skip-tokenizer-init")
WITHOUT_GRAPHS = ("--cuda-graph-backend-decode", "disabled", "--cuda-graph-backend-prefill", "disabled")


def server_arguments(recipe: Recipe, checkpoint: Path) -> list[str]:
    """For `sglang serve`; what server.args says comes last and so has the last word."""
    return [
        "--model-path",
        str(checkpoint),
        *NO_WEIGHTS,
        *layout_arguments(recipe.parallel),
        *flag_arguments(recipe.server, recipe.parallel),
        *shlex.split(recipe.server.args or ""),
    ]


def layout_arguments(parallel: Parallel) -> list[str]:
    """Sizes that differ from one, and the nodes that so many ranks need."""
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
        nodes = -(-parallel.num_ranks // GPUS_OF_A_NODE)
        arguments += ["--nnodes", str(nodes), "--dist-init-addr", RENDEZVOUS]
    return arguments


def flag_arguments(server: Server, parallel: Parallel) -> list[str]:
    """Flags that the recipe sets; a default stays the server's own."""
    chosen = {
        "--moe-runner-backend": None
        if server.moe_runner_backend is MoeRunner.auto
        else server.moe_runner_backend.value,
        "--fp8-gemm-backend": None if server.fp8_gemm_backend is DenseBackend.auto else server.fp8_gemm_backend.value,
        "--prefill-attention-backend": (
            None if server.attention_backend is AttentionBackend.auto else server.attention_backend.value
        ),
        "--deepep-mode": server.deepep_mode.value if parallel.moe_a2a_backend.is_used else None,
        "--ep-num-redundant-experts": server.ep_num_redundant_experts or None,
        "--chunked-prefill-size": server.chunked_prefill_size,
        "--max-running-requests": server.max_running_requests,
        "--cuda-graph-max-bs-decode": server.cuda_graph_max_bs,
        "--disaggregation-mode": None
        if server.disaggregation_mode is PdRole.none
        else server.disaggregation_mode.value,
    }
    arguments = [word for flag, value in chosen.items() if value is not None for word in (flag, str(value))]
    switches = {
        "--disable-shared-experts-fusion": server.shared_experts_fusion is FusedShared.off,
        "--enforce-shared-experts-fusion": server.shared_experts_fusion is FusedShared.enforced,
        "--enable-deterministic-inference": server.enable_deterministic_inference,
        "--enable-two-batch-overlap": server.enable_two_batch_overlap,
        "--enable-single-batch-overlap": server.enable_single_batch_overlap,
    }
    arguments += [flag for flag, is_set in switches.items() if is_set]
    if server.mtp:
        # One draft step for each token of a request beyond the first; SGLang finds the model's own draft layer.
        steps = max(1, server.tokens_per_request - 1)
        arguments += ["--speculative-algorithm", "EAGLE", "--speculative-num-steps", str(steps)]
        arguments += ["--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", str(steps + 1)]
    return arguments + (list(WITHOUT_GRAPHS) if server.disable_cuda_graph else [])


def variants(recipe: Recipe, arguments: list[str]) -> dict[str, list[str]]:
    """Each way to start it by name: as the flags say, and once more without CUDA graphs, which take other paths."""
    given = {"as configured": arguments}
    return given if recipe.server.disable_cuda_graph else given | {"without graphs": [*arguments, *WITHOUT_GRAPHS]}


def environment_of_flags(recipe: Recipe) -> dict[str, str]:
    """Options of the recipe that are environment variables of the server."""
    server = recipe.server
    parallel = recipe.parallel
    (config, _) = read_config(recipe.model)
    variables = {
        # SGLang looks for this in the weights, which are not there.
        "SGLANG_DSV4_FP4_EXPERTS": "0" if config.get("expert_dtype") == "fp8" else None,
        "SGLANG_JIT_DEEPGEMM_FAST_WARMUP": "1" if server.fast_warmup else None,
        "SGLANG_PP_LAYER_PARTITION": ",".join(map(str, parallel.layer_partition)) or None,
        "SGLANG_OPT_FP8_WO_A_GEMM": None if server.fp8_wo_a is None else str(int(server.fp8_wo_a)),
        "SGLANG_USE_DEEPGEMM_BMM": None if server.use_deepgemm_bmm is None else str(int(server.use_deepgemm_bmm)),
    }
    return {name: value for name, value in variables.items() if value is not None}
