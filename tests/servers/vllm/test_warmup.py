"""How many M the start-up launches."""

from __future__ import annotations

import pytest

from pipeline.servers.vllm.flags import Warmup
from pipeline.servers.vllm.warmup import relaxed
from tests.servers.vllm.derived import problem_of, vllm


@pytest.mark.parametrize(("n", "count"), [(2112, 205), (3072, 233), (7168, 292), (128, 142)])
def test_the_relaxed_list_has_the_known_lengths(n: int, count: int) -> None:
    assert len(relaxed(8192, n, 132)) == count


@pytest.mark.parametrize(("warmup", "calls"), [(Warmup.skip, 0), (Warmup.full, 8192), (Warmup.relax, 292)])
def test_the_start_up_launches_what_its_mode_says(warmup: Warmup, calls: int) -> None:
    assert problem_of(vllm(warmup=warmup), "self_attn.o_proj").warmup_calls == calls


def test_hopper_was_not_warmed_in_one_release() -> None:
    calls = [problem_of(vllm(version=v), "self_attn.o_proj").warmup_calls for v in ("0.24.0", "0.25.0", "0.26.0")]
    assert calls == [292, 0, 292]
