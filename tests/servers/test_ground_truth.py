"""Real servers are the oracle: what they printed in public logs, and what SGLang 0.5.23 asked of DeepGEMM itself."""

from __future__ import annotations

from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from pipeline.engine.errors import ConfigError
from pipeline.servers.derive import Workload, derive
from pipeline.servers.registry import SERVERS
from pipeline.servers.shared.flags import ServerFlags
from pipeline.servers.shared.problems import Kernel
from pipeline.servers.vllm.flags import VllmFlags
from pipeline.target import Target
from pipeline.workload.parallel import A2A, Parallel
from tests.servers.recipes import shipped, target

OBSERVED = Path(__file__).with_name("observed")
LOGS: list[dict[str, Any]] = yaml.safe_load((OBSERVED / "logs.yaml").read_text())
ITSELF: list[dict[str, Any]] = yaml.safe_load((OBSERVED / "sglang_itself.yaml").read_text())
# Cards of the logs that no file of conf/target describes: capability, SMs, GiB of memory.
CARDS = {"b300": ("10.3", 148, 268), "rtx_pro_6000": ("12.0", 188, 96), "gb10": ("12.1", 48, 119)}
GIB = 1 << 30


def card(name: str) -> Target:
    """A shipped target, or a B200 with another card's figures."""
    if name not in CARDS:
        return target(name)
    capability, sms, memory = CARDS[name]
    return replace(target("b200"), name=name, compute_capability=capability, num_sms=sms, memory_bytes=memory * GIB)


def server_of(case: dict[str, Any]) -> ServerFlags:
    """The case's flags, names of enum members as members."""
    schema = SERVERS[case["server"]].flags
    hints = get_type_hints(schema)
    flags = {
        name: hints[name][value] if isinstance(hints[name], type) and issubclass(hints[name], Enum) else value
        for name, value in case.get("flags", {}).items()
    }
    assert set(flags) <= {field.name for field in fields(schema)}
    return schema(version=case["version"], **flags)


def derived(case: dict[str, Any]) -> Workload:
    """What the rules say of the case."""
    sizes = dict(case["parallel"])
    backend = A2A[sizes.pop("moe_a2a_backend", "none")]
    model = shipped(case["model"], **case.get("changes", {}))
    return derive(model, Parallel(moe_a2a_backend=backend, **sizes), server_of(case), card(case["target"]))


def by_id(cases: list[dict[str, Any]], **wanted: Any) -> list[Any]:
    """The cases with these values, named."""
    chosen = [case for case in cases if all(case.get(name) == value for name, value in wanted.items())]
    return [pytest.param(case, id=case["id"]) for case in chosen]


@pytest.mark.parametrize("case", by_id(LOGS, server="vllm", complete=True))
def test_a_whole_log_of_vllm_is_reproduced_to_the_call(case: dict[str, Any]) -> None:
    """The total that the log prints, and each shape with its own number of calls, and nothing else."""
    warmed = {
        (problem.kernel.value, problem.n, problem.k, problem.groups): problem.warmup_calls
        for problem in derived(case).problems
        if problem.warmup_calls
    }
    assert warmed == {tuple(shape[:4]): shape[4] for shape in case["shapes"]}
    assert sum(filter(None, warmed.values())) == case["printed_total"]


@pytest.mark.parametrize("case", by_id(LOGS, complete=False))
def test_every_printed_shape_is_derived(case: dict[str, Any]) -> None:
    problems = sorted(derived(case).problems, key=lambda problem: bool(problem.options))
    printed: dict[Any, int | None] = {(p.kernel.value, p.n, p.k, p.groups): p.warmup_calls for p in problems}
    for kernel, n, k, groups, calls in case["shapes"]:
        same = {key: count for key, count in printed.items() if key[:3] == (kernel, n, k)}
        assert same, (kernel, n, k)
        if groups is not None:
            assert (kernel, n, k, groups) in same
        if calls is not None:
            assert printed[kernel, n, k, groups] == calls


def test_a_case_that_no_rules_are_for_says_why() -> None:
    assert [case["id"] for case in LOGS if case.get("not_reproduced")] == ["tokenspeed-dsv4-flash-b200"]


def test_every_observed_case_is_tried() -> None:
    assert (len(LOGS), len(ITSELF)) == (20, 7)
    assert sum(case["complete"] for case in LOGS) == 9


NOT_REACHED = {Kernel.CONTIGUOUS.value}


@pytest.mark.parametrize("case", [p for p in by_id(ITSELF) if "error" not in p.values[0]])
def test_the_rules_derive_what_sglang_asked_for(case: dict[str, Any]) -> None:
    """A case that did not answer stopped before its experts ran."""
    rows = {(p.kernel.value, p.n, p.k, p.groups) for p in derived(case).problems}
    compared = {Kernel.DENSE.value} if not case["complete"] else {row[0] for row in rows} - NOT_REACHED
    assert {row for row in rows if row[0] in compared} == {tuple(shape) for shape in case["shapes"]}


@pytest.mark.parametrize("case", [p for p in by_id(ITSELF) if "error" in p.values[0]])
def test_a_layout_that_sglang_refused_is_refused_here(case: dict[str, Any]) -> None:
    """It said: output_size of gate's and up's weight = 192 is not divisible by weight quantization block_n = 128."""
    with pytest.raises(ConfigError, match=r"N 192 of one shard must be a multiple of the scale block 128"):
        derived(case)


@pytest.mark.parametrize(
    ("version", "gpu", "model", "parallel", "total"),
    [
        # GLM-5 with the indexer's key fused away, and DeepSeek-V4-Flash in a later release: totals that logs quote.
        ("0.20.0", "b200", "glm5", Parallel(tp=8), 2116),
        ("0.25.2", "gb10", "deepseek_v4_flash", Parallel(tp=2), 1762),
    ],
)
def test_totals_that_logs_quote_beside_their_own(
    version: str, gpu: str, model: str, parallel: Parallel, total: int
) -> None:
    server = VllmFlags(version=version, max_num_batched_tokens=8192)
    problems = derive(shipped(model), parallel, server, card(gpu)).problems
    assert sum(problem.warmup_calls or 0 for problem in problems) == total
