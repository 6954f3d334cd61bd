"""vLLM: layouts with which it would not start."""

from __future__ import annotations

from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.workload.linears import Refusal, Role


def refusals(deployment: VllmDeployment) -> list[Refusal]:
    """Everything at once."""
    facts = deployment.facts
    kinds = facts.attentions(range(facts.num_layers))
    by_attention = [refusal for kind in kinds for refusal in kind.refusals(deployment.parallel.attn_tp)]
    return list(dict.fromkeys(by_attention + _layout(deployment) + _dense(deployment) + _experts(deployment)))


def _layout(deployment: VllmDeployment) -> list[Refusal]:
    parallel = deployment.parallel
    entries: list[Refusal] = []
    if parallel.attn_cp > 1:
        entries.append(Refusal("parallel.attn_cp must be 1 for vLLM, whose context parallelism changes no shape"))
    if parallel.moe_dense_tp_size is not None:
        entries.append(Refusal("parallel.moe_dense_tp_size is SGLang's; leave it null for vLLM"))
    if parallel.effective_ep not in (1, parallel.tp):
        entries.append(
            Refusal(
                f"parallel.ep must be 1 or parallel.tp {parallel.tp} for vLLM (--enable-expert-parallel spreads "
                f"experts over all ranks), got {parallel.effective_ep}"
            )
        )
    return entries


def _dense(deployment: VllmDeployment) -> list[Refusal]:
    dense = deployment.facts.dense
    tp = deployment.parallel.attn_tp
    if dense is None or dense.intermediate % tp == 0:
        return []
    message = f"intermediate_size {dense.intermediate} must be divisible by the tp {tp}; change parallel.tp"
    return [Refusal(message, (Role.DENSE_MLP,))]


def _experts(deployment: VllmDeployment) -> list[Refusal]:
    experts = deployment.facts.experts
    parallel = deployment.parallel
    if experts is None or not parallel.spreads_experts or experts.num % parallel.tp == 0:
        return []
    return [Refusal(f"the {experts.num} experts must be divisible by all {parallel.tp} ranks; change parallel.tp")]
