"""Split a command line into what Hydra takes as flags and what it takes as overrides, in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.engine.errors import ConfigError

# Hydra's flags that are followed by a value (hydra --hydra-help).
WITH_VALUE = {
    "--config-dir": "--config-dir",
    "-cd": "--config-dir",
    "--config-name": "--config-name",
    "-cn": "--config-name",
    "--config-path": "--config-path",
    "-cp": "--config-path",
    "--cfg": "--cfg",
    "-c": "--cfg",
    "--package": "--package",
    "-p": "--package",
    "--info": "--info",
    "-i": "--info",
}
MULTIRUN = ("--multirun", "-m")
RECIPE = "recipe"


@dataclass(slots=True)
class CommandLine:
    """Flags with their values, and overrides; `recipe=PATH` has become the flags that compose that file."""

    flags: list[str] = field(default_factory=list[str])
    values: dict[str, str] = field(default_factory=dict[str, str])
    overrides: list[str] = field(default_factory=list[str])
    recipe_file: Path | None = None
    """What recipe=PATH names."""

    @property
    def config_dirs(self) -> list[Path]:
        """Folders of configs beside the shipped ones."""
        given = self.values.get("--config-dir")
        return [Path(given).absolute()] if given else []

    @property
    def config_name(self) -> str:
        """The file that is composed."""
        return self.values.get("--config-name", "config")

    @property
    def is_multirun(self) -> bool:
        """Whether several recipes are asked for."""
        return any(flag in MULTIRUN for flag in self.flags)

    def arguments(self, *more: str) -> list[str]:
        """For Hydra, which takes no flag after an override."""
        valued = [word for pair in self.values.items() for word in pair]
        return [*self.flags, *valued, *self.overrides, *more]


def parse(arguments: Sequence[str], free_text: Sequence[str] = ()) -> CommandLine:
    """Raises ConfigError for a recipe or a folder that is not there; values of the keys in `free_text` are quoted."""
    line = CommandLine()
    rest = iter(arguments)
    for argument in rest:
        name, separator, value = argument.partition("=")
        if name in WITH_VALUE:
            line.values[WITH_VALUE[name]] = value if separator else next(rest, "")
        elif argument.startswith("-"):
            line.flags.append(argument)
        elif name == RECIPE:
            path = _recipe_file(value)
            line.values |= {"--config-dir": str(path.parent), "--config-name": path.stem}
            line.recipe_file = path
        elif name in free_text:
            line.overrides.append(f"{name}={quoted(value)}")
        else:
            line.overrides.append(argument)
    if missing := [str(folder) for folder in line.config_dirs if not folder.is_dir()]:
        raise ConfigError(f"--config-dir: no such folder: {', '.join(missing)}")
    return line


def quoted(value: str) -> str:
    """As Hydra reads it back to the letter, commas and equals signs included; null and what is quoted stay."""
    if value in ("", "null") or value[0] in "'\"":
        return value
    escaped = value.replace("'", "\\'")
    return f"'{escaped}'"


def _recipe_file(value: str) -> Path:
    path = Path(value).absolute()
    path = path / "recipe.yaml" if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"recipe: no such file: {path}; give a recipe.yaml that a run left, or the folder it is in")
    return path
