"""Everything that a run can tell its user has gone wrong.

WarmupError
|-- ConfigError          exit 2: the recipe is wrong
|   `-- NoRulesError     exit 2: the rules do not know what it names, a server might
|-- HostError            exit 3: this machine lacks something
|-- StageError           exit 4: a stage did its best and failed
|   |-- SlotError        a stage touched the context outside its contract
|   |-- CapacityError    more rows asked than a slot holds
|   `-- IncompleteError  exit 6: what is there is good, and something is missing
|       `-- WrongRuleError  exit 6: the rules miss a problem that the server names; it was baked all the same
|-- VerifyError          exit 5: the result is not what it should be
`-- Interrupted          exit 130: the user asked to stop
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from pipeline.engine.figures import Figures

EXIT_OK = 0
EXIT_INCOMPLETE = 6


class WarmupError(Exception):
    """Base of what users are told; anything else is a defect of Preheat."""

    exit_code = 1


class ConfigError(WarmupError):
    """The recipe is wrong; `lines` holds one line for each thing to change."""

    exit_code = 2

    def __init__(self, *lines: str) -> None:
        super().__init__("\n".join(lines))
        self.lines = list(lines)


class NoRulesError(ConfigError):
    """The rules do not know what the recipe names.

    `subjects` are what they lack; `wrong` holds the lines about anything else, which no server would make good.
    """

    def __init__(self, *lines: str, subjects: Sequence[str], wrong: Sequence[str] = ()) -> None:
        super().__init__(*lines, *wrong)
        self.subjects = tuple(subjects)
        self.wrong = list(wrong)


class HostError(WarmupError):
    """This machine lacks something that the recipe needs; the message says what to do."""

    exit_code = 3


class StageError(WarmupError):
    """A stage failed; `figures` holds what it can still report."""

    exit_code = 4

    def __init__(self, message: str, *, figures: Sequence[Figures] = ()) -> None:
        super().__init__(message)
        self.figures = tuple(figures)


class SlotError(StageError):
    """A stage touched the context outside its contract."""


class CapacityError(StageError):
    """More rows were asked than a slot holds."""


class IncompleteError(StageError):
    """What was made is good, and the message says what is missing."""

    exit_code = EXIT_INCOMPLETE


class WrongRuleError(IncompleteError):
    """The server names a problem that the rules do not; its kernels are there, those of its kind may not be."""


class VerifyError(StageError):
    """The result is not what it should be."""

    exit_code = 5


class Interrupted(WarmupError):
    """The user asked to stop; children are ended and finished work is kept."""

    exit_code = 130


def shortened(faults: Sequence[str], most: int = 10) -> str:
    """The first faults, one a line, and how many more there are."""
    more = [f"and {len(faults) - most} more; report.json has them all"] if len(faults) > most else []
    return "\n".join([*faults[:most], *more])


def unknown(what: str, name: str, choices: Sequence[str]) -> str:
    """One line that names the nearest choice and lists them all."""
    near = get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ";"
    return f"{what} {name!r} is unknown{hint} known: {', '.join(sorted(choices))}"
