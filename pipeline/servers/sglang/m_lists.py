"""SGLang 0.5.23: the lists of M of its own sweep (deep_gemm_wrapper/compile_utils.py update_deep_gemm_config)."""

from __future__ import annotations

from pipeline.servers.sglang.flags import SglangFlags
from pipeline.servers.shared.contiguous_layout import ALIGNMENT, contiguous_rows
from pipeline.servers.shared.problems import MList

DEFAULT_M_MAX = 16384
UNCHUNKED_M_MAX = 65536
LARGEST_M_MAX = 131072
FAST_WARMUP_DENSE_UP_TO = 1024
FAST_WARMUP_MAX = 32768


def m_list(server: SglangFlags, chunk: int) -> MList:
    """Every M that the server's own sweep would visit."""
    if server.fast_warmup:
        return _fast_m_list(DEFAULT_M_MAX if chunk < 1 else min(chunk, FAST_WARMUP_MAX))
    m_max = DEFAULT_M_MAX
    if chunk < 1:
        m_max = UNCHUNKED_M_MAX
    elif chunk > 8192:
        m_max = 2 * chunk
    return MList.up_to(min(m_max, LARGEST_M_MAX))


def contiguous_m_list(every_m: MList, *, chunk: int, top_k: int, groups: int) -> MList:
    """Rows of the contiguous kernels: the server's list, and what one chunk's routes reach when that is more.

    The server filters its list of M to aligned values, although M counts routes here: with a small chunk it visits
    too few. Past DEFAULT_M_MAX no measured shape selects another kernel (docs/kernels.md), so the list ends there.
    """
    reached = min(contiguous_rows(max(chunk, 1) * top_k, groups), DEFAULT_M_MAX)
    largest = max(every_m.largest, reached)
    beyond = range(every_m.largest + 1, largest + 1)
    aligned = [m for m in every_m if m % ALIGNMENT == 0]
    return MList.of(aligned + [m for m in beyond if m % ALIGNMENT == 0])


def _fast_m_list(largest: int) -> MList:
    ranges = [range(1, min(FAST_WARMUP_DENSE_UP_TO, largest) + 1)]
    start = FAST_WARMUP_DENSE_UP_TO
    step = 2
    while start < largest:
        ranges.append(range(start, min(2 * start, largest + 1), step))
        start = 2 * start
        step = 2 * step
    values = sorted({m for part in ranges for m in part} | {largest})
    return MList.of(values)
