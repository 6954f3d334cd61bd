"""Derive the workload of a recipe: every problem its ranks launch, and what does not go to DeepGEMM and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.engine.errors import ConfigError
from pipeline.virtual_gpu.targets import Target
from pipeline.workload.families import FAMILIES, MODEL_TYPES, Read
from pipeline.workload.hf_config import Facts, Model, architecture, read_config
from pipeline.workload.linears import Linear, Role
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import Parallel, partition_problems
from pipeline.workload.problems import NotDeepGemm, Problem, merge
from pipeline.workload.servers import Server
from pipeline.workload.servers.rules import Rules
from pipeline.workload.servers.sglang import SglangRules
from pipeline.workload.servers.vllm import VllmRules

# How a line about a size that does not divide begins, and which linears it is about.
UNEVEN_PARTS = {
    "num_attention_heads": (Role.ATTENTION, Role.KV_UP),
    "num_key_value_heads": (Role.ATTENTION,),
    "linear_num_": (Role.ATTENTION,),
    "o_groups": (Role.ATTENTION,),
    "intermediate_size": (Role.DENSE_MLP,),
    "moe_intermediate_size": (Role.EXPERTS,),
    "shared experts": (Role.SHARED_EXPERTS,),
}
SERVERS = {"sglang": SglangRules, "vllm": VllmRules}


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

    facts: ModelFacts
    rules: Rules
    stages: tuple[StageLayers, ...]
    problems: tuple[Problem, ...]
    not_deepgemm: tuple[NotDeepGemm, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the deployment."""
        return sum(len(stage.ranks) for stage in self.stages)


def derive(model: Model, parallel: Parallel, server: Server, target: Target) -> Workload:
    """Everything that follows from the recipe; ConfigError lists all that is wrong with it."""
    facts, found = model_facts(model)
    wrong_sizes = parallel.problems()
    wrong_target = target.problems()
    found += wrong_sizes + server.problems() + wrong_target
    if facts is None or wrong_sizes or server.name not in SERVERS:
        raise ConfigError(*found)
    rules = SERVERS[server.name](facts, parallel, server, target)
    wrong_layers = partition_problems(parallel, facts.num_layers)
    uneven = rules.problems()
    found += wrong_layers + uneven
    stages = () if wrong_layers or wrong_target else tuple(_stages(rules, facts, parallel, server))
    found += cut_blocks(rules, stages, uneven)
    if found:
        raise ConfigError(*found)
    return Workload(
        facts=facts,
        rules=rules,
        stages=stages,
        problems=tuple(merge(_problems(rules, stages))),
        not_deepgemm=tuple(_not_deepgemm(rules, stages)),
    )


def model_facts(model: Model) -> tuple[ModelFacts | None, list[str]]:
    """(the model, what is wrong with its config); None when it cannot be read."""
    config, found = read_config(model)
    if found:
        return None, found
    name = architecture(config)
    kind = config.get("model_type")
    where = f"model.hf_config {model.hf_config}" if model.hf_config else f"conf/model/{model.name}.yaml"
    read = _reader(name, kind)
    if read is None:
        known = f"supported: {', '.join(sorted(FAMILIES))}"
        return None, [f"{where}: architecture {name!r} (model_type {kind!r}) is not supported; {known}"]
    reader = Facts(config, where)
    facts = read(reader, name or str(kind))
    # What follows from a field that is absent would only be a second line about the same thing.
    return (None if reader.problems else facts), list(dict.fromkeys(reader.problems))


def _reader(name: str | None, kind: object) -> Read | None:
    if name is not None:
        return FAMILIES.get(name)
    return MODEL_TYPES.get(kind) if isinstance(kind, str) else None


def _split(rules: Rules, facts: ModelFacts, parallel: Parallel) -> list[tuple[int, ...]]:
    counts = parallel.layer_partition if parallel.layer_partition and parallel.pp > 1 else None
    layers: list[tuple[int, ...]] = []
    start = 0
    for count in counts or rules.split(facts.num_layers):
        layers.append(tuple(range(start, start + count)))
        start += count
    return layers


def _stages(rules: Rules, facts: ModelFacts, parallel: Parallel, server: Server) -> Iterator[StageLayers]:
    for stage, layers in enumerate(_split(rules, facts, parallel)):
        linears = rules.linears(layers)
        if server.mtp and stage == parallel.pp - 1:
            # The draft layer runs beside the last stage.
            linears += rules.linears((), draft=True)
        yield StageLayers(stage, layers, parallel.ranks_of_stage(stage), tuple(linears))


def cut_blocks(rules: Rules, stages: Sequence[StageLayers], uneven: Sequence[str]) -> list[str]:
    """Shards that cut a scale block; those of a part that does not divide at all are told as that already."""
    told = {
        role for problem in uneven for name, roles in UNEVEN_PARTS.items() if problem.startswith(name) for role in roles
    }
    linears = [linear for stage in stages for linear in stage.linears if linear.role not in told]
    # The same linear is on many stages; one line about it is enough.
    return list(dict.fromkeys(problem for linear in linears for problem in rules.cut_blocks(linear)))


def _problems(rules: Rules, stages: Sequence[StageLayers]) -> list[Problem]:
    found: list[Problem] = []
    for stage in stages:
        for linear in stage.linears:
            if rules.reason(linear) is not None:
                continue
            for use in rules.uses(linear):
                sizes = (use.kernel, linear.n, linear.k, linear.groups)
                needed = ((linear.name,), linear.layers, stage.ranks, (use.rule,))
                found.append(Problem(*sizes, use.m, *needed, use.options, use.warmup_calls))
        is_last = stage is stages[-1]
        found += rules.others(stage.layers, stage.ranks, is_last=is_last)
    return found


def _not_deepgemm(rules: Rules, stages: Sequence[StageLayers]) -> list[NotDeepGemm]:
    seen = {(linear.name, linear.n, linear.k): linear for stage in stages for linear in stage.linears}
    found = [
        NotDeepGemm(f"{linear.name} {linear.n}x{linear.k}", reason)
        for linear in seen.values()
        if (reason := rules.reason(linear)) is not None
    ]
    return list(dict.fromkeys(found + rules.never()))
