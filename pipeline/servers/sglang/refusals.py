"""SGLang 0.5.23: layouts and flags with which it would not start, or would fail at the first request.

Paths are inside the package sglang/srt of that version.
"""

from __future__ import annotations

from pipeline.servers.sglang import moe, shared_experts
from pipeline.servers.sglang.deployment import SglangDeployment
from pipeline.servers.sglang.flags import DeepEpMode, MoeRunner
from pipeline.servers.sglang.model_classes import class_of
from pipeline.servers.sglang.schemes import experts_scheme, scheme_of
from pipeline.workload.blocks import Divisor, must_divide
from pipeline.workload.linears import Refusal, Role
from pipeline.workload.parallel import A2A

# moe_intermediate_size of a Qwen3-Next or Qwen3.5 config that names none (configs/qwen3_next.py).
DEFAULT_MOE_SIZE = 512
DOWN = "mlp.down_proj"


def refusals(deployment: SglangDeployment, attention_tp: int) -> list[Refusal]:
    """Everything at once; `attention_tp`: ranks that share one attention layer."""
    facts = deployment.facts
    kinds = facts.attentions(range(facts.num_layers))
    entries = [
        *(refusal for kind in kinds for refusal in kind.refusals(attention_tp)),
        *_dense(deployment),
        *_experts(deployment),
        *_absent_experts(deployment),
        *_shared_experts(deployment),
        *_pipeline(deployment),
        *_pplx(deployment),
        *_runner(deployment),
    ]
    return list(dict.fromkeys(entries))


def _dense(deployment: SglangDeployment) -> list[Refusal]:
    dense = deployment.facts.dense
    if dense is None:
        return []
    by = Divisor("the dense tp", deployment.parallel.dense_tp, "parallel.tp")
    return must_divide("intermediate_size", dense.intermediate, by, Role.DENSE_MLP)


def _experts(deployment: SglangDeployment) -> list[Refusal]:
    experts = deployment.facts.experts
    if experts is None:
        return []
    parallel = deployment.parallel
    over_ranks = Divisor("the expert parallel size", parallel.effective_ep, "parallel.ep")
    inside = Divisor("the expert tp", parallel.moe_tp, "parallel.ep or tp")
    entries = must_divide("n_routed_experts", experts.num, over_ranks)
    entries += must_divide("moe_intermediate_size", experts.intermediate, inside, Role.EXPERTS)
    if parallel.tp > experts.num:
        message = f"parallel.tp {parallel.tp} exceeds the model's {experts.num} experts; lower parallel.tp"
        entries.append(Refusal(message))
    return entries


def _absent_experts(deployment: SglangDeployment) -> list[Refusal]:
    """model_runner_components/moe_ep_setup.py checks experts wherever the config's class has a size for them."""
    facts = deployment.facts
    meets_check = class_of(facts).checks_absent_experts and facts.experts is None
    method = deployment.quantization.method
    tp = deployment.parallel.moe_tp
    block = scheme_of(deployment, DOWN, 0).block if method == "fp8" else None
    if not meets_check or block is None or (DEFAULT_MOE_SIZE // tp) % block[0] == 0:
        return []
    return [
        Refusal(
            f"parallel.tp {deployment.parallel.tp}: SGLang takes a dense Qwen3.5 for one with experts of "
            f"{DEFAULT_MOE_SIZE} and refuses to cut them into {tp}, which cuts a scale block of {block[0]}; lower "
            "parallel.tp, or raise parallel.ep"
        )
    ]


def _shared_experts(deployment: SglangDeployment) -> list[Refusal]:
    experts = deployment.facts.experts
    if experts is None or not experts.num_shared:
        return []
    by = Divisor("parallel.tp", shared_experts.shared_tp(deployment.facts, deployment.parallel), "parallel.tp")
    return must_divide("shared experts' size", experts.shared_intermediate, by, Role.SHARED_EXPERTS)


def _pipeline(deployment: SglangDeployment) -> list[Refusal]:
    if class_of(deployment.facts).has_pipeline or deployment.parallel.pp == 1:
        return []
    return [Refusal(f"parallel.pp must be 1: SGLang's {deployment.facts.architecture} has no pipeline stages")]


def _pplx(deployment: SglangDeployment) -> list[Refusal]:
    """arg_groups/moe_hook.py."""
    if deployment.parallel.moe_a2a_backend is not A2A.pplx:
        return []
    entries: list[Refusal] = []
    if deployment.parallel.attn_dp < 2:
        entries.append(Refusal("parallel.moe_a2a_backend=pplx needs parallel.attn_dp of at least 2 (moe_hook.py)"))
    if deployment.server.deepep_mode is DeepEpMode.normal:
        entries.append(Refusal("parallel.moe_a2a_backend=pplx has no normal mode; set server.deepep_mode=auto"))
    return entries


def _runner(deployment: SglangDeployment) -> list[Refusal]:
    """Experts that SGLang hands to a runner that then fails, at load or at the first request."""
    experts = deployment.facts.experts
    scheme = experts_scheme(deployment)
    is_compressed = scheme.method == moe.COMPRESSED_TENSORS
    backend = deployment.parallel.moe_a2a_backend
    if experts is None:
        return []
    is_requested = deployment.server.moe_runner_backend is MoeRunner.deep_gemm
    is_fp4 = experts.is_fp4 or scheme.method == "mxfp4"
    if is_fp4 and moe.runner(deployment, scheme) is MoeRunner.deep_gemm and not deployment.is_sm100:
        why = "would call DeepGEMM with FP4 experts (expert_dtype), which it takes from sm_100 on,"
    elif is_compressed and is_requested:
        why = "has no DeepGEMM runner for compressed-tensors experts"
    elif is_compressed and backend in moe.A2A_ON_DEEPGEMM:
        # layers/moe/ep_moe/layer.py run_moe_core.
        why = "has no path for compressed-tensors experts behind it"
    else:
        return []
    if is_requested:
        return [Refusal(f"server.moe_runner_backend=deep_gemm: SGLang {why} and would fail; set it to auto")]
    return [Refusal(f"parallel.moe_a2a_backend={backend.value}: SGLang {why} and would fail; set it to none")]
