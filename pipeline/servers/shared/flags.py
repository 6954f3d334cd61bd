"""Options of a server: each is declared once, with its help and the server's own spelling.

A server's folder has a `flags.py` with a subclass of ServerFlags; what is typed after `server.` is checked against it.
The arguments and variables with which that server is started are generated from the same fields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from typing import Any, ClassVar

Spelling = str | Sequence[str] | Mapping[Enum, str]


def flag(default: Any, spelling: Spelling | None = None, *, variable: str | None = None) -> Any:
    """A field of ServerFlags with the server's own spelling of it.

    `spelling`: the argument that takes the value; for a switch the words that stand for true; for an enum whose
    members are arguments of their own, a mapping. `variable`: the environment variable that takes the value instead.
    None for both: the value reaches the server in another way, or only the rules read it.
    """
    return field(default=default, metadata={"spelling": spelling, "variable": variable})


@dataclass(kw_only=True)
class ServerFlags:
    """The flags of every server; each server's own subclass adds its flags."""

    name: str = ""
    """Which server."""
    version: str = ""
    """Its version: rules that changed between releases are chosen by it."""
    args: str | None = None
    """discovery=server: further arguments of the server, as they would be typed; they have the last word."""
    python: str | None = None
    """discovery=server: the Python that has the server; None means this one."""
    start_limit_s: int = 1200
    """discovery=server: seconds that one start may take, compilers included; then it is ended and shows its stack."""
    tokens_per_request: int = 1
    """Tokens one request brings to a decode step; more than 1 with speculative decoding."""
    mtp: bool = False
    """Whether the model's own draft layer runs (speculative decoding with MTP)."""
    served_elsewhere: list[str] = field(default_factory=list[str])
    """Linears that a custom build gives to another kernel, by name (self_attn.wo_b)."""

    at_least_one: ClassVar[tuple[str, ...]] = ("tokens_per_request", "start_limit_s")
    at_least_zero: ClassVar[tuple[str, ...]] = ()

    def config_errors(self) -> list[str]:
        """What is wrong with the flags, one line each."""
        least_of = dict.fromkeys(self.at_least_one, 1) | dict.fromkeys(self.at_least_zero, 0)
        errors = [
            f"server.{name} must be at least {least}, got {value}"
            for name, least in least_of.items()
            if (value := getattr(self, name)) is not None and value < least
        ]
        if self.version and release(self.version) is None:
            errors.append(f"server.version {self.version!r} is not a version; write it as 0.5.23")
        return errors

    def arguments(self) -> list[str]:
        """The server's own arguments for every flag that differs from its default."""
        words: list[str] = []
        for spelling, value in self._changed("spelling"):
            if isinstance(spelling, Mapping):
                words.append(spelling[value])
            elif isinstance(value, bool):
                words += [spelling] if isinstance(spelling, str) else spelling
            else:
                words += [spelling, as_text(value)]
        return words

    def variables(self) -> dict[str, str]:
        """The environment variables for every flag that is one and differs from its default."""
        return {name: as_text(value) for name, value in self._changed("variable")}

    def _changed(self, kind: str) -> list[tuple[Any, Any]]:
        changed: list[tuple[Any, Any]] = []
        for option in fields(self):
            default = option.default if option.default_factory is MISSING else option.default_factory()
            value = getattr(self, option.name)
            if (spelled := option.metadata.get(kind)) is not None and value != default:
                changed.append((spelled, value))
        return changed


def as_text(value: Any) -> str:
    """A value as it is written on a command line or in a variable: an enum by its value, a bool as 0 or 1."""
    if isinstance(value, bool):
        return str(int(value))
    return str(value.value if isinstance(value, Enum) else value)


def release(version: str) -> tuple[int, int, int] | None:
    """0.21.1rc1.dev339 as (0, 21, 1): a build before a release counts as the release; None when it is no version."""
    numbers: list[int] = []
    for part in version.split("+")[0].split(".")[:3]:
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
    return (numbers[0], numbers[1], numbers[2] if len(numbers) > 2 else 0) if len(numbers) >= 2 else None
