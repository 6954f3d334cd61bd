"""vLLM: how many tokens and requests a rank holds (engine/arg_utils.py, the defaults of its API server)."""

from __future__ import annotations

from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.servers.vllm.versions import Version

GIB = 1 << 30
# Targets with at least this much memory get the larger defaults, and the largest chunk.
SMALL_MEMORY = 70 * GIB
LARGE_MEMORY = 160 * GIB


def chunk(deployment: VllmDeployment, version: Version) -> int:
    """max_num_batched_tokens."""
    if deployment.server.max_num_batched_tokens is not None:
        return deployment.server.max_num_batched_tokens
    memory = deployment.target.memory_bytes
    if memory >= LARGE_MEMORY and version >= (0, 28, 0):
        return 16384
    return 8192 if memory >= SMALL_MEMORY else 2048


def decode_batch(deployment: VllmDeployment) -> int:
    """max_num_seqs."""
    server = deployment.server
    if server.max_running_requests is not None:
        return server.max_running_requests
    if server.cuda_graph_max_bs is not None:
        return server.cuda_graph_max_bs
    return 1024 if deployment.target.memory_bytes >= SMALL_MEMORY else 256
