"""Derive the workload of a recipe: every problem its ranks launch, and what does not go to DeepGEMM and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pipeline.arithmetic import spans
from pipeline.engine.errors import ConfigError, NoRulesError
from pipeline.servers.no_rules import HINT, architecture_without_rules, pipeline_errors
from pipeline.servers.registry import SERVERS
from pipeline.servers.rules import Rules, Use
from pipeline.servers.shared.flags import ServerFlags
from pipeline.servers.shared.problems import Problem, merge
from pipeline.servers.shared.schemes import unloadable
from pipeline.target import Target
from pipeline.workload.families import FAMILIES, MODEL_TYPES, Read
from pipeline.workload.hf_config import Facts, Model, architecture, read_config, read_hf_quant_config
from pipeline.workload.linears import Linear, NotDeepGemm, Refusal
from pipeline.workload.model import ModelFacts
from pipeline.workload.parallel import Parallel, partition_errors


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRank:
    """What the ranks at one place of the pipeline hold: their layers and linears."""

    place: int
    layers: tuple[int, ...]
    ranks: tuple[int, ...]
    linears: tuple[Linear, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The answer of `derive`: `pipeline_ranks` has an entry for each place of the pipeline, in order."""

    facts: ModelFacts
    rules: Rules
    pipeline_ranks: tuple[PipelineRank, ...]
    problems: tuple[Problem, ...]
    not_deepgemm: tuple[NotDeepGemm, ...]

    @property
    def num_ranks(self) -> int:
        """Ranks of the deployment."""
        return sum(len(place.ranks) for place in self.pipeline_ranks)


def derive(model: Model, parallel: Parallel, server: ServerFlags, target: Target) -> Workload:
    """Everything that follows from the recipe; ConfigError lists all that is wrong with it.

    NoRulesError where the rules do not know its architecture.
    """
    facts, errors = model_facts(model)
    size_errors = parallel.config_errors()
    target_errors = target.config_errors()
    other_errors = size_errors + server.config_errors() + target_errors
    if server.name not in SERVERS:
        other_errors.append(f"server.name {server.name!r} has no rules here; known: {', '.join(SERVERS)}")
    elif (name := architecture_without_rules(model)) is not None:
        other_errors += [] if size_errors else pipeline_errors(model, parallel)
        raise NoRulesError(*(_with_hint(line, server) for line in errors), subjects=[name], wrong=other_errors)
    errors += other_errors
    if facts is None or size_errors or server.name not in SERVERS:
        raise ConfigError(*errors)
    rules = SERVERS[server.name].rules(facts, parallel, server, target)
    layer_errors = partition_errors(parallel, facts.num_layers)
    refusals = rules.refusals()
    errors += layer_errors + [refusal.message for refusal in refusals]
    places = () if layer_errors or target_errors else tuple(_pipeline_ranks(rules, facts, parallel))
    errors += _unloadable(rules, places) + _cut_blocks(rules, places, refusals)
    if errors:
        raise ConfigError(*errors)
    return Workload(
        facts=facts,
        rules=rules,
        pipeline_ranks=places,
        problems=tuple(merge(_problems(rules, places))),
        not_deepgemm=tuple(_not_deepgemm(rules, places)),
    )


def model_facts(model: Model) -> tuple[ModelFacts | None, list[str]]:
    """(the model, what is wrong with its config); None when it cannot be read."""
    config, errors = read_config(model)
    quantised, more_errors = read_hf_quant_config(model)
    if errors or more_errors:
        return None, errors + more_errors
    name = architecture(config)
    kind = config.get("model_type")
    where = f"model.hf_config {model.hf_config}" if model.hf_config else f"conf/model/{model.name}.yaml"
    read = _reader(name, kind)
    if read is None:
        known = f"supported: {', '.join(sorted(FAMILIES))}"
        return None, [f"{where}: architecture {name!r} (model_type {kind!r}) is not supported; {known}"]
    reader = Facts(config, where, quantised)
    facts = read(reader, name or str(kind))
    # What follows from a field that is absent would only be a second line about the same thing.
    return (None if reader.errors else facts), list(dict.fromkeys(reader.errors))


def _with_hint(line: str, server: ServerFlags) -> str:
    """The line about an architecture without rules, and what helps where the server can be asked."""
    return line if SERVERS[server.name].askable is None else f"{line}; {HINT}"


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


def _pipeline_ranks(rules: Rules, facts: ModelFacts, parallel: Parallel) -> Iterator[PipelineRank]:
    for place, layers in enumerate(_split(rules, facts, parallel)):
        linears = rules.linears(layers)
        if rules.runs_draft and place == parallel.pp - 1:
            # The draft layer runs beside the last layers.
            linears += rules.linears((), draft=True)
        yield PipelineRank(place=place, layers=layers, ranks=parallel.ranks_at(place), linears=tuple(linears))


def _unloadable(rules: Rules, places: Sequence[PipelineRank]) -> list[str]:
    """Why the server would not load the checkpoint: as a whole, or one of its linears."""
    draft_errors = rules.draft_quantization.errors if rules.runs_draft else ()
    whole = [*rules.quantization.errors, *draft_errors]
    return list(dict.fromkeys(whole)) or unloadable(linear for place in places for linear in place.linears)


def _cut_blocks(rules: Rules, places: Sequence[PipelineRank], refusals: Sequence[Refusal]) -> list[str]:
    """Shards that cut a scale block; those of a part that does not divide at all are refused as that already."""
    refused_roles = {role for refusal in refusals for role in refusal.roles}
    linears = [linear for place in places for linear in place.linears if linear.role not in refused_roles]
    # Every place of the pipeline holds the same linear; one line about it is enough.
    return list(dict.fromkeys(line for linear in linears for line in rules.cut_blocks(linear)))


def _problems(rules: Rules, places: Sequence[PipelineRank]) -> Iterator[Problem]:
    for place in places:
        for linear in place.linears:
            if rules.reason(linear) is None:
                yield from (_problem(linear, use, place.ranks) for use in rules.uses(linear))
        yield from rules.standalone_problems(place.layers, place.ranks, is_last=place is places[-1])


def _problem(linear: Linear, use: Use, ranks: tuple[int, ...]) -> Problem:
    return Problem(
        kernel=use.kernel,
        n=linear.n,
        k=linear.k,
        groups=linear.groups,
        m=use.m,
        linears=(linear.name,),
        layers=linear.layers,
        ranks=ranks,
        rules=(use.rule,),
        options=use.options,
        warmup_calls=use.warmup_calls,
    )


def _not_deepgemm(rules: Rules, places: Sequence[PipelineRank]) -> list[NotDeepGemm]:
    answers = _answers(rules, places)
    entries: list[NotDeepGemm] = []
    for shape, layers_of in answers.items():
        for reason, layers in layers_of.items():
            if reason is not None:
                # Layers are named where they have different answers.
                where = f" (layers {spans(sorted(layers))})" if len(layers_of) > 1 else ""
                entries.append(NotDeepGemm(f"{shape}{where}", reason))
    return list(dict.fromkeys(entries + rules.not_for_deepgemm()))


def _answers(rules: Rules, places: Sequence[PipelineRank]) -> dict[str, dict[str | None, set[int]]]:
    """For each shape of a linear: why DeepGEMM does not serve it, or None where it does, and in which layers."""
    answers: dict[str, dict[str | None, set[int]]] = {}
    for place in places:
        for linear in place.linears:
            layers_of = answers.setdefault(f"{linear.name} {linear.n}x{linear.k}", {})
            layers_of.setdefault(rules.reason(linear), set()).update(linear.layers)
    return answers
