"""vLLM: over how many ranks each part of a layer is spread.

A layout here is one over all ranks of a replica group: vLLM's --tensor-parallel-size is parallel.attn_tp, its
--data-parallel-size is parallel.attn_dp, and --enable-expert-parallel is an all-to-all backend or parallel.ep =
parallel.tp. Paths are inside the package vllm of 0.33.
"""

from __future__ import annotations

from pipeline.servers.rules import Widths
from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.servers.vllm.model_classes import class_of
from pipeline.servers.vllm.versions import Version
from pipeline.workload.parallel import A2A

SCALE_BLOCK = 128


def split_layers(num_layers: int, pp: int) -> list[int]:
    """The last place of the pipeline gets no extra layer, the ones before it do (distributed/utils.py)."""
    base, extra = divmod(num_layers, pp)
    counts = [base] * pp
    for back in range(2, extra + 2):
        counts[-back] += 1
    return counts


def widths(deployment: VllmDeployment, version: Version) -> Widths:
    """Attention and dense layers follow the tp of an engine, experts go over all ranks."""
    parallel = deployment.parallel
    tp = parallel.attn_tp
    rounded_since = class_of(deployment.facts).rounds_shared_since
    rounds_shared = rounded_since is not None and version >= rounded_since
    return Widths(
        attention=tp,
        dense=1 if _holds_dense_whole(deployment, version) else tp,
        shared=1 if _holds_shared_whole(deployment, version) else tp,
        experts=1 if parallel.spreads_experts else parallel.tp,
        groups=_groups(deployment),
        num_fused=0,
        shared_multiple=SCALE_BLOCK if rounds_shared else 1,
    )


def is_sequence_parallel(deployment: VllmDeployment) -> bool:
    """Whether the ranks of an engine share its tokens among them in front of the experts."""
    parallel = deployment.parallel
    spreads = parallel.spreads_experts and parallel.attn_tp > 1 and parallel.attn_dp > 1
    return spreads and parallel.moe_a2a_backend is not A2A.pplx


def _groups(deployment: VllmDeployment) -> int:
    """models/deepseek_v2.py: n_local_physical_experts is (logical + redundant) // ep_size."""
    experts = deployment.facts.experts
    if experts is None:
        return 0
    if not deployment.parallel.spreads_experts:
        return experts.num
    return (experts.num + deployment.server.ep_num_redundant_experts) // deployment.parallel.tp


def _holds_dense_whole(deployment: VllmDeployment, version: Version) -> bool:
    kinds = deployment.facts.attentions(range(deployment.facts.num_layers))
    is_indexed = any(getattr(kind, "indexer", None) for kind in kinds)
    has_one_place = deployment.parallel.pp == 1
    return is_sequence_parallel(deployment) and is_indexed and version >= (0, 29, 0) and has_one_place


def _holds_shared_whole(deployment: VllmDeployment, version: Version) -> bool:
    model_class = class_of(deployment.facts)
    if not model_class.replicates_shared or version < model_class.replicates_shared_since:
        return False
    replicates_here = model_class.replicates_shared_over_pp or deployment.parallel.pp == 1
    return is_sequence_parallel(deployment) and replicates_here
