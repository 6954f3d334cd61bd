"""vLLM 0.33: how the linears of a deployment are stored, module by module."""

from __future__ import annotations

from dataclasses import replace

from pipeline.servers.shared.legacy_quantization import module_kind, module_path, not_handed
from pipeline.servers.vllm.deployment import VllmDeployment
from pipeline.workload.scheme import PLAIN, Scheme

EXPERTS = "mlp.experts.w13"
KV_UP = "self_attn.kv_b_proj"
HEAD = "lm_head"


def scheme_of(deployment: VllmDeployment, name: str, layer: int, *, draft: bool = False) -> Scheme:
    """The scheme of our linear `name` in one layer; PLAIN where the model's class hands it no quantisation."""
    facts = deployment.facts
    quantization = deployment.draft_quantization if draft else deployment.quantization
    kept = not_handed(facts, name, facts.declared, quantization.method, draft=draft)
    if kept is not None:
        return replace(PLAIN, text=kept)
    return quantization.scheme(module_path(facts, name, layer, draft=draft), module_kind(name))


def experts_scheme(deployment: VllmDeployment) -> Scheme:
    """That of the first layer with experts; PLAIN for a dense model. What follows from flags alone is decided by it."""
    facts = deployment.facts
    layers = [layer for layer in range(facts.num_layers) if facts.is_moe(layer)]
    return scheme_of(deployment, EXPERTS, layers[0]) if layers else PLAIN
