"""vLLM: what changed in which release, read by comparing the wheels of neighbouring ones."""

from __future__ import annotations

from pipeline.servers.shared.flags import release

Version = tuple[int, int, int]
NEWEST: Version = (0, 33, 0)

# The first release that has it; files of 0.33 unless said otherwise.
CHANGES: dict[Version, str] = {
    (0, 11, 1): "VLLM_DEEP_GEMM_WARMUP=relax is the default; before, every M was launched at start",
    (
        0,
        12,
        0,
    ): "N of a dense product must be a multiple of 64 (was 128); warm-up cuts experts' tokens at 16384 (was 32768)",
    (0, 14, 0): "TRTLLM experts are not warmed",
    (0, 16, 0): "grouped products are warmed behind DeepEP low latency too",
    (0, 17, 0): "grouped products are warmed for every FP8-block backend unless VLLM_MOE_USE_DEEP_GEMM=0",
    (0, 18, 0): "warm-up of grouped products has no cap on tokens",
    (0, 20, 0): "DeepGEMM is vendored, N and K compiled in; only DeepGEMM experts are warmed; the indexer's wk is bf16",
    (0, 24, 0): "grouped warm-up list follows the dense one; DeepSeek-V4 rounds shared experts to whole scale blocks",
    (0, 25, 0): "dense products below 32 rows are FlashInfer's on sm_90, and those linears are not warmed",
    (0, 26, 0): "linears whose fallback is DeepGEMM are warmed again",
    (0, 27, 0): "DeepSeek-V4 replicates shared experts under sequence parallelism",
    (0, 28, 0): "max_num_batched_tokens is 16384 from 160 GiB on",
    (0, 29, 0): "indexed models replicate dense layers under sequence parallelism",
    (0, 30, 0): "linears with N a multiple of 64 are warmed (was 128), whatever wrote the checkpoint",
    (0, 32, 0): "contiguous products are served in the psum layout, which the warm-up does not launch",
}


def version_of(text: str) -> Version:
    """The release of a version text; the newest when none is given."""
    return release(text) or NEWEST


def changes_up_to(version: Version) -> list[tuple[Version, str]]:
    """The rules that hold in a release, oldest first."""
    return [(since, change) for since, change in CHANGES.items() if since <= version]
