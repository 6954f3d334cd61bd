"""What tests derive from: the shipped models, layouts and targets, a server, and a tiny model that fits any machine."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from pipeline.servers.derive import Workload, derive
from pipeline.servers.registry import SERVERS
from pipeline.servers.sglang.flags import MoeRunner
from pipeline.servers.shared.flags import ServerFlags
from pipeline.servers.shared.problems import Kernel
from pipeline.target import Target
from pipeline.workload.hf_config import Model
from pipeline.workload.linears import Linear
from pipeline.workload.parallel import A2A, Parallel

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "models" / "tiny"
# Kimi-K2: nh 64, E 384, first_k_dense 1; H, ql, kl and the head dims as V3.
KIMI_K2 = {
    "num_attention_heads": 64,
    "n_routed_experts": 384,
    "first_k_dense_replace": 1,
    "vocab_size": 163840,
}


@cache
def _shipped(group: str, name: str) -> str:
    return (ROOT / "conf" / group / f"{name}.yaml").read_text()


def shipped(name: str, **changes: Any) -> Model:
    """A file of conf/model, some of its facts changed."""
    return Model(name=name, config=yaml.safe_load(_shipped("model", name))["config"] | changes)


def deepseek(**changes: Any) -> Model:
    """The shipped DeepSeek-V3 facts, some of them changed."""
    return shipped("deepseek", **changes)


def tiny(**changes: Any) -> Model:
    """The tiny DeepSeek-shaped model, some of its facts changed."""
    return Model(name="tiny", config=json.loads((TINY / "config.json").read_text()) | changes)


def layout(name: str) -> Parallel:
    """A file of conf/parallel."""
    sizes = yaml.safe_load(_shipped("parallel", name))
    backend = A2A[sizes.pop("moe_a2a_backend", "none")]
    return Parallel(moe_a2a_backend=backend, **sizes)


def target(name: str = "h200") -> Target:
    """A file of conf/target."""
    return Target(**yaml.safe_load(_shipped("target", name)))


VERSIONS = {"sglang": "0.5.23", "vllm": "0.33.0"}


def server(name: str = "sglang", **flags: Any) -> ServerFlags:
    """SGLang 0.5.23, or another server or version, with these flags."""
    options: dict[str, Any] = {"version": VERSIONS[name]}
    return SERVERS[name].flags(**(options | flags))


DEEP_GEMM: dict[str, Any] = {"moe_runner_backend": MoeRunner.deep_gemm}


def workload_of(model: Model, parallel: Parallel, *, gpu: str = "h200", **flags: Any) -> Workload:
    """What `derive` answers for a model and a layout under these server flags."""
    return derive(model, parallel, server(**flags), target(gpu))


def shape(linear: Linear) -> str:
    """NxK, and the groups of a grouped one in brackets, as tables of shapes write it."""
    groups = f" ({linear.groups})" if linear.groups > 1 else ""
    return f"{linear.n}x{linear.k}{groups}"


def shapes_of(workload: Workload) -> dict[str, str]:
    """Each linear of any stage by its name without the module's path."""
    return {linear.name: shape(linear) for stage in workload.pipeline_ranks for linear in stage.linears}


def keys_of(workload: Workload) -> set[tuple[str, int, int, int]]:
    """(kernel, N, K, groups) of every problem."""
    return {(problem.kernel.value, problem.n, problem.k, problem.groups) for problem in workload.problems}


def kernels_of(workload: Workload) -> set[Kernel]:
    """The kernels that any problem names."""
    return {problem.kernel for problem in workload.problems}
