"""Derive the workload of a recipe: every problem its ranks launch, and what does not go to DeepGEMM and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.engine.errors import ConfigError
from pipeline.virtual_gpu.targets import Target
from pipeline.workload.families import FAMILIES, deepseek
from pipeline.workload.families.deepseek import DeepseekFacts
from pipeline.workload.hf_config import Facts, Model, architecture, read_config
from pipeline.workload.linears import Linear, Role, block_problems
from pipeline.workload.parallel import Parallel, partition_problems, split_layers_last
from pipeline.workload.problems import Kernel, MList, NotDeepGemm, Problem, merge
from pipeline.workload.servers import Server, sglang, sglang_batches


@dataclass(frozen=True, slots=True)
class StageLayers:
    """What one pipeline stage holds: its layers, its ranks and its linears."""

    stage: int
    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    linears: tuple[Linear, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """The answer of `derive`."""

    facts: DeepseekFacts
    stages: tuple[StageLayers, ...]
    problems: tuple[Problem, ...]
    not_deepgemm: tuple[NotDeepGemm, ...]
    chunk: int
    """Prefill tokens of one chunk on one rank."""
    decode_batch: int
    """The decode graph's largest batch, in requests."""
    routes_per_token: int
    """Experts that one token visits."""

    @property
    def num_ranks(self) -> int:
        """Ranks of the deployment."""
        return sum(len(stage.ranks) for stage in self.stages)


def derive(model: Model, parallel: Parallel, server: Server, target: Target) -> Workload:
    """Everything that follows from the recipe; ConfigError lists all that is wrong with it."""
    facts, found = _facts(model)
    wrong_sizes = parallel.problems()
    found += wrong_sizes + server.problems() + target.problems()
    if facts is not None and not wrong_sizes:
        found += partition_problems(parallel, facts.num_layers) + deepseek.layout_problems(facts, parallel)
    if facts is None or found:
        raise ConfigError(*found)
    fused = sglang.shared_experts_not_fused(facts, server, parallel) is None
    stages = tuple(
        StageLayers(
            stage, layers, parallel.ranks_of_stage(stage), tuple(_linears(facts, parallel, layers, fused=fused))
        )
        for stage, layers in enumerate(_split(facts, parallel))
    )
    _check_blocks(facts, stages)
    return Workload(
        facts=facts,
        stages=stages,
        problems=tuple(merge(_problems(facts, parallel, server, target, stages))),
        not_deepgemm=tuple(_not_deepgemm(facts, parallel, server, target, stages)),
        chunk=sglang_batches.default_chunk(server, parallel, target),
        decode_batch=sglang_batches.default_decode_batch(server, parallel, target),
        routes_per_token=sglang.routes_per_token(facts, server, parallel),
    )


def _facts(model: Model) -> tuple[DeepseekFacts | None, list[str]]:
    config, found = read_config(model)
    if found:
        return None, found
    name = architecture(config)
    where = f"model.hf_config {model.hf_config}" if model.hf_config else f"conf/model/{model.name}.yaml"
    if name not in FAMILIES:
        return None, [f"{where}: architecture {name!r} is not supported; supported: {', '.join(sorted(FAMILIES))}"]
    reader = Facts(config, where)
    facts = FAMILIES[name].read(reader, name)
    # What follows from a field that is absent would only be a second line about the same thing.
    return (None if reader.problems else facts), reader.problems


def _split(facts: DeepseekFacts, parallel: Parallel) -> list[tuple[int, ...]]:
    counts = parallel.layer_partition if parallel.layer_partition and parallel.pp > 1 else None
    layers: list[tuple[int, ...]] = []
    start = 0
    for count in counts or split_layers_last(facts.num_layers, parallel.pp):
        layers.append(tuple(range(start, start + count)))
        start += count
    return layers


def _linears(facts: DeepseekFacts, parallel: Parallel, layers: Sequence[int], *, fused: bool) -> list[Linear]:
    dense = [layer for layer in layers if not facts.is_moe(layer)]
    moe = [layer for layer in layers if facts.is_moe(layer)]
    found = deepseek.attention(facts, parallel, layers)
    if dense:
        found += deepseek.feed_forward(
            "mlp",
            Role.DENSE_MLP,
            hidden=facts.hidden,
            intermediate=facts.intermediate,
            tp=parallel.dense_tp,
            layers=dense,
        )
    if moe and facts.num_shared and not fused:
        found += deepseek.feed_forward(
            "mlp.shared_experts",
            Role.SHARED_EXPERTS,
            hidden=facts.hidden,
            intermediate=facts.moe_intermediate * facts.num_shared,
            tp=sglang.shared_experts_tp(parallel),
            layers=moe,
        )
    if moe:
        found += deepseek.experts(facts, parallel, moe, num_fused_shared=facts.num_shared if fused else 0)
    return found


def _check_blocks(facts: DeepseekFacts, stages: Sequence[StageLayers]) -> None:
    block = facts.quantization.block
    if block is None:
        return
    # The same linear is on many stages; one line about it is enough.
    found = [problem for stage in stages for linear in stage.linears for problem in block_problems(linear, block)]
    if found:
        raise ConfigError(*dict.fromkeys(found))


def _problems(
    facts: DeepseekFacts, parallel: Parallel, server: Server, target: Target, stages: Sequence[StageLayers]
) -> list[Problem]:
    chunk = sglang_batches.default_chunk(server, parallel, target)
    found: list[Problem] = []
    for stage in stages:
        for linear in stage.linears:
            if _reason(linear, facts, parallel, server, target) is not None:
                continue
            for kernel, rule, m in _kernels(linear, facts, parallel, server, chunk):
                key = (kernel, linear.n, linear.k, linear.groups)
                found.append(Problem(*key, m, (linear.name,), linear.layers, stage.ranks, (rule,)))
    return found


def _kernels(
    linear: Linear, facts: DeepseekFacts, parallel: Parallel, server: Server, chunk: int
) -> list[tuple[Kernel, str, MList]]:
    every_m = sglang.m_list(server, chunk)
    if linear.role is not Role.EXPERTS:
        return [(Kernel.DENSE, sglang.RULES[linear.role], every_m)]
    routes = sglang.routes_per_token(facts, server, parallel)
    # Experts see the tokens of every attention DP group, not only this rank's chunk.
    tokens = chunk * parallel.attn_dp
    aligned = sglang.contiguous_m_list(every_m, chunk=tokens, top_k=routes, groups=linear.groups)
    return [
        (kernel, rule, aligned if kernel is Kernel.CONTIGUOUS else every_m)
        for kernel, rule in sglang.expert_kernels(server, parallel)
    ]


def _reason(linear: Linear, facts: DeepseekFacts, parallel: Parallel, server: Server, target: Target) -> str | None:
    """Why no DeepGEMM kernel serves this linear, or None when one does."""
    if linear.role is Role.EXPERTS:
        by_flags = sglang.experts_not_on_deepgemm(server, parallel, target)
    elif linear.role is Role.KV_UP:
        by_flags = sglang.kv_up_not_a_gemm(server, parallel)
    else:
        by_flags = None
    return by_flags or sglang.dense_not_on_deepgemm(linear, facts.quantization.block)


def _not_deepgemm(
    facts: DeepseekFacts,
    parallel: Parallel,
    server: Server,
    target: Target,
    stages: Sequence[StageLayers],
) -> list[NotDeepGemm]:
    seen = {linear.name: linear for stage in stages for linear in stage.linears}
    found = [
        NotDeepGemm(f"{linear.name} {linear.n}x{linear.k}", reason)
        for linear in seen.values()
        if (reason := _reason(linear, facts, parallel, server, target)) is not None
    ]
    return found + sglang.never_on_deepgemm(facts)
