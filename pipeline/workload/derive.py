"""Derive the workload of a recipe: every problem its ranks launch, and what does not go to DeepGEMM and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.engine.errors import ConfigError
from pipeline.virtual_gpu.targets import Target
from pipeline.workload.families import FAMILIES, MODEL_TYPES, Read
from pipeline.workload.hf_config import Facts, Model, architecture, read_config
from pipeline.workload.linears import Linear
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import Parallel, partition_problems
from pipeline.workload.problems import NotDeepGemm, Problem, merge
from pipeline.workload.servers import Server
from pipeline.workload.servers.rules import Rules
from pipeline.workload.servers.sglang import SglangRules
from pipeline.workload.servers.vllm import VllmRules

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
    found += wrong_sizes + server.problems() + target.problems()
    rules = None
    if facts is not None and not wrong_sizes and server.name in SERVERS:
        rules = SERVERS[server.name](facts, parallel, server, target)
        found += partition_problems(parallel, facts.num_layers) + rules.problems()
    if facts is None or rules is None or found:
        raise ConfigError(*found)
    stages = tuple(
        StageLayers(
            stage, layers, parallel.ranks_of_stage(stage), tuple(_linears(rules, layers, stage, parallel, server))
        )
        for stage, layers in enumerate(_split(rules, facts, parallel))
    )
    _check_blocks(rules, stages)
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
    name, kind = architecture(config), config.get("model_type")
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


def _linears(rules: Rules, layers: Sequence[int], stage: int, parallel: Parallel, server: Server) -> list[Linear]:
    found = rules.linears(layers)
    # The draft layer runs beside the last stage.
    return found + (rules.linears((), draft=True) if server.mtp and stage == parallel.pp - 1 else [])


def _check_blocks(rules: Rules, stages: Sequence[StageLayers]) -> None:
    # The same linear is on many stages; one line about it is enough.
    found = [problem for stage in stages for linear in stage.linears for problem in rules.cut_blocks(linear)]
    if found:
        raise ConfigError(*dict.fromkeys(found))


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
