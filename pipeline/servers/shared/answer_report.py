"""How an answer of the server is reported, and how it compares with the rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pipeline.engine.tables import Table
from pipeline.figures import AskFigures
from pipeline.servers.shared.answer import ServerAnswer
from pipeline.servers.shared.compare import Difference


def ask_figures(
    answer: ServerAnswer, differences: Sequence[Difference] | None, *, version: str, arguments: list[str]
) -> AskFigures:
    """The section of report.json; `reused` entries of a cache were in the output directory before.

    `differences` None: there are no rules to compare with.
    """
    return AskFigures(
        version=version,
        arguments=arguments,
        starts=list(answer.starts),
        asked_again=answer.is_new,
        problems=len(answer.problems),
        rules_only=None if differences is None else named_only_by("rules", differences),
        server_only=None if differences is None else named_only_by("server", differences),
        caches={name: _counts(answer, name) for name in answer.entries},
        cute_dsl=answer.cute_dsl,
        autotune_keys=answer.autotune_keys,
        seconds_longest_start=answer.seconds if answer.is_new else None,
        peak_bytes=answer.peak_bytes,
        tokens_answered=answer.tokens_answered,
        faults=list(answer.faults),
    )


def _counts(answer: ServerAnswer, cache: str) -> dict[str, int]:
    num_entries = len(answer.entries[cache])
    compiled = answer.compiled[cache] if answer.is_new else 0
    return {"asked": num_entries, "compiled": compiled, "reused": num_entries - compiled}


def ask_summary(answer: ServerAnswer, differences: Sequence[Difference] | None) -> str:
    """One line: how much was asked, and how it compares with the rules where there are some."""
    source = f"{len(answer.starts)} starts" if answer.is_new else "remembered"
    compiled = ", ".join(f"{len(entries)} {name}" for name, entries in answer.entries.items() if entries)
    if answer.cute_dsl:
        compiled += f", {len(answer.cute_dsl)} of CuTe-DSL, which every start compiles again"
    if answer.autotune_keys:
        compiled += f", {len(answer.autotune_keys)} autotune keys, to be tuned on the card"
    incomplete = "; INCOMPLETE: a start ended early" if answer.faults else ""
    return (
        f"{source}: {len(answer.problems)} DeepGEMM problems, {compiled}; {answer.tokens_answered} tokens answered; "
        f"{_comparison(differences)}{incomplete}"
    )


def _comparison(differences: Sequence[Difference] | None) -> str:
    if differences is None:
        return "no rules to compare with"
    counts = Counter(line.named_by for line in differences)
    return f"rules and server agree on {counts['both']}, rules alone {counts['rules']}, server alone {counts['server']}"


def wrong_rules(differences: Sequence[Difference]) -> list[str]:
    """One line for what the rules lack, and one for each such problem; none where they lack nothing."""
    lines = [f"{line.name} ({line.where})" for line in differences if line.named_by == "server"]
    if not lines:
        return []
    first = (
        f"{len(lines)} problems that only the server names: a rule is wrong. Their kernels are in the output; "
        "ask.accept_differences=true ends with exit code 0, discovery=server goes by the server alone"
    )
    return [first, *lines]


def named_only_by(who: str, differences: Sequence[Difference]) -> list[dict[str, str]]:
    """The problems that only one of the two names."""
    return [{"problem": line.name, "where": line.where} for line in differences if line.named_by == who]


def difference_tables(differences: Sequence[Difference]) -> tuple[Table, ...]:
    """A table of the problems that only one of the two names; no table when there are none."""
    table = Table("Rules against server", ("problem", "named by", "where"))
    for line in differences:
        if line.named_by != "both":
            table.add(line.name, line.named_by, line.where)
    return (table,) if table.rows else ()
