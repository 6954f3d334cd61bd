"""vLLM: how many M its own start-up launches (model_executor/warmup/deep_gemm_warmup.py), to compare with a log."""

from __future__ import annotations

from pipeline.arithmetic import ceil_div, round_up
from pipeline.servers.shared.contiguous_layout import ALIGNMENT
from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.servers.vllm.flags import Warmup
from pipeline.servers.vllm.versions import Version
from pipeline.workload.blocks.feed_forward import Experts
from pipeline.workload.linears import Linear, Role

ALWAYS = (1, 2, 4, *range(8, 65, 8))
TILES_M = (64, 128, 256)
MAX_TILE_N = 256
TILE_N_STEP = 16
MAX_WAVES = 10


def relaxed(largest: int, n: int, num_sms: int) -> list[int]:
    """_generate_optimal_warmup_m_values: small M, whole tiles, and what fills 1 to 10 waves of tiles."""
    values = set(ALWAYS)
    for tile_m in TILES_M:
        for tile_n in range(TILE_N_STEP, min(MAX_TILE_N, n) + 1, TILE_N_STEP):
            waves = (wave * num_sms * tile_m // ceil_div(n, tile_n) for wave in range(1, MAX_WAVES + 1))
            values.update(m for m in waves if 1 <= m <= largest)
        values.update(range(tile_m, largest + 1, tile_m))
    return sorted(values)


def dense_calls(deployment: VllmDeployment, version: Version, linear: Linear, chunk: int) -> int:
    """M that the start-up launches for a dense linear; 0 when it does not visit it. The drafter is never visited."""
    if deployment.server.warmup is Warmup.skip or linear.role is Role.DRAFT:
        return 0
    multiple = 64 if version >= (0, 30, 0) else 128
    if linear.n % multiple != 0 or ((0, 25, 0) <= version < (0, 26, 0) and deployment.is_sm90):
        return 0
    if version < (0, 11, 1) or deployment.server.warmup is Warmup.full:
        return chunk
    return len(relaxed(chunk, linear.n, deployment.target.num_sms))


def grouped_rows(
    deployment: VllmDeployment, version: Version, experts: Experts, *, tokens: int, groups: int
) -> list[int] | None:
    """M of one grouped product at start-up.

    None where DeepGEMM's own alignment decides: from 0.24 on, anywhere but on sm_90.
    """
    top_k = experts.top_k
    if version < (0, 24, 0):
        cap = 32768 if version < (0, 12, 0) else 16384 if version < (0, 18, 0) else tokens
        last = min(tokens, cap) * top_k + groups * (ALIGNMENT - 1)
        return list(range(ALIGNMENT, round_up(last, ALIGNMENT) + 1, ALIGNMENT))
    if not deployment.is_sm90:
        return None
    widest = max(2 * experts.intermediate, deployment.facts.hidden)
    token_counts = {*relaxed(tokens, widest, deployment.target.num_sms), tokens}
    return sorted({round_up(m * top_k + min(m * top_k, groups) * (ALIGNMENT - 1), ALIGNMENT) for m in token_counts})
