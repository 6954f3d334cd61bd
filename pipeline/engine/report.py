"""report.json and the table at the end: what was measured, null where nothing was."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from pipeline.engine.errors import EXIT_INCOMPLETE, EXIT_OK, Interrupted
from pipeline.engine.runner import Outcome, Status
from pipeline.engine.stage import Stage
from pipeline.engine.tables import Table


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """130 when interrupted, else the first failure's code, else 6 when something is missing or never ran, else 0."""
    if any(outcome.status is Status.INTERRUPTED for outcome in outcomes):
        return Interrupted.exit_code
    for outcome in outcomes:
        if outcome.status is Status.FAILED and outcome.error is not None:
            return outcome.error.exit_code
    lacking = (Status.INCOMPLETE, Status.BLOCKED)
    return EXIT_INCOMPLETE if any(outcome.status in lacking for outcome in outcomes) else EXIT_OK


def build_report(outcomes: Sequence[Outcome], stages: Mapping[str, Stage]) -> dict[str, Any]:
    """One entry for each stage, and one section for each kind of figure, with null for what was not measured."""
    code = exit_code(outcomes)
    status = {EXIT_OK: "ok", EXIT_INCOMPLETE: "incomplete", Interrupted.exit_code: "incomplete"}.get(code, "failed")
    report: dict[str, Any] = {"status": status, "exit_code": code}
    report["stages"] = [
        {
            "name": outcome.name,
            "status": outcome.status.value,
            "seconds": None if outcome.seconds is None else round(outcome.seconds, 3),
            "reason": outcome.reason,
            "bytes_allocated": outcome.allocated_bytes,
        }
        for outcome in outcomes
    ]
    for outcome in outcomes:
        for kind in stages[outcome.name].reports:
            section = report.setdefault(kind.section, {})
            section.update({field.name: None for field in fields(kind) if field.name not in section})
        for figures in outcome.figures:
            section = report.setdefault(figures.section, {})
            section |= {name: value for name, value in asdict(figures).items() if value is not None}
    return report


def summary_table(title: str, outcomes: Sequence[Outcome]) -> Table:
    """One row for each stage."""
    table = Table(title, ("stage", "status", "seconds", "allocated", "what"))
    for outcome in outcomes:
        seconds = "" if outcome.seconds is None else f"{outcome.seconds:.1f}"
        allocated = "" if outcome.allocated_bytes is None else f"{outcome.allocated_bytes:+d} B"
        what = (outcome.reason or "").split("\n")[0]
        table.add(outcome.name, outcome.status.value, seconds, allocated, what)
    return table


def write_atomically(path: Path, text: str) -> None:
    """Replace the file whole: a reader sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
        try:
            file.write(text)
            file.flush()
            # Temporary files are private; what a server's user reads is not.
            os.fchmod(file.fileno(), 0o644)
            Path(file.name).replace(path)
        except BaseException:
            Path(file.name).unlink(missing_ok=True)
            raise


def to_json(value: Mapping[str, Any]) -> str:
    """Indented JSON with a final newline."""
    return json.dumps(value, indent=2) + "\n"
