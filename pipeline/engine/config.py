"""From command line and YAML to one typed recipe; every error of a recipe is found at once.

The untyped tree lives in this file and in run.py only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.engine.errors import ConfigError, unknown
from pipeline.engine.stage import Stage

SCHEMA = "recipe_schema"
STAGES_PATH = ["pipeline", "stages"]


def make_schema(recipe: type, stages: Mapping[str, type[Stage]]) -> type:
    """The recipe's dataclass with one more field for each stage that has options."""
    options = [
        (name, cls, dataclasses.field(default_factory=cls)) for name, cls in stages.items() if dataclasses.fields(cls)
    ]
    return dataclasses.make_dataclass("RecipeWithStages", options, bases=(recipe,), kw_only=True)


def register(schema: type) -> None:
    """Make the schema known to Hydra, so that conf/config.yaml can start from it."""
    ConfigStore.instance().store(name=SCHEMA, node=schema)


def override_problems(
    overrides: Sequence[str], schema: type, config_dirs: Iterable[Path], stages: Iterable[str]
) -> list[str]:
    """What is wrong with each override, one line each, with the nearest name and the choices."""
    groups = _groups(config_dirs)
    found: list[str] = []
    for argument in overrides:
        try:
            override = OverridesParser.create().parse_override(argument)
        except HydraException as error:
            found.append(f"{argument!r} is not KEY=VALUE: {str(error).splitlines()[0]}")
            continue
        for single in _choices(override):
            problem = _problem(single, groups, schema, sorted(stages))
            found += [problem] if problem else []
    return found


def composed(
    overrides: Sequence[str], config_dir: Path, *, config_name: str = "config", more_dirs: Sequence[Path] = ()
) -> DictConfig:
    """Compose without running; ConfigError when Hydra or OmegaConf refuse."""
    # Hydra looks for the primary config in one folder only, and for groups in the others too.
    folders = [config_dir, *more_dirs]
    primary = next((folder for folder in folders if (folder / f"{config_name}.yaml").is_file()), config_dir)
    others = [f"file://{folder}" for folder in folders if folder != primary]
    searched = [f"hydra.searchpath=[{','.join(others)}]"] if others else []
    try:
        with initialize_config_dir(str(primary), version_base="1.3"):
            return compose(config_name, [*overrides, *searched])
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_first_lines(error)) from error


def without_sweeps(overrides: Sequence[str]) -> list[str]:
    """What the recipes of a multirun share."""
    parser = OverridesParser.create()
    return [text for text in overrides if not parser.parse_override(text).is_sweep_override()]


def to_recipe(raw: DictConfig) -> Any:
    """The typed recipe; ConfigError when an interpolation or a value does not resolve."""
    try:
        return OmegaConf.to_object(raw)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_lines(error)) from error


def to_yaml(raw: DictConfig) -> str:
    """The composed recipe as YAML that composes to itself: run.py recipe=PATH."""
    return f"defaults: [{SCHEMA}, hydra_settings, _self_]\n" + OmegaConf.to_yaml(raw, resolve=True)


def _choices(override: Override) -> list[Override]:
    """The override itself, or one for each value of a multirun's list."""
    if not override.is_sweep_override():
        return [override]
    key = override.input_line.split("=")[0] if override.input_line else override.key_or_group
    return [OverridesParser.create().parse_override(f"{key}={value}") for value in override.sweep_string_iterator()]


def _problem(
    override: Override, groups: Mapping[str, Sequence[str]], schema: type, stages: Sequence[str]
) -> str | None:
    key = override.key_or_group.split("@")[0]
    if key.split(".")[0] == "hydra" or key.startswith("hydra/"):
        return None
    if key in groups and isinstance(override.value(), str | None):
        return _group_problem(override, groups[key])
    return _key_problem(key, schema, stages) or _value_problem(override, key, schema)


def _groups(config_dirs: Iterable[Path]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for root in config_dirs:
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            groups.setdefault(folder.name, []).extend(sorted(path.stem for path in folder.glob("*.yaml")))
    return groups


def _group_problem(override: Override, choices: Sequence[str]) -> str | None:
    value = override.value()
    if override.is_delete() or value is None or str(value) in choices:
        return None
    return unknown(f"{override.key_or_group}: option", str(value), choices)


def _key_problem(key: str, schema: type, stages: Sequence[str]) -> str | None:
    current: Any = schema
    walked: list[str] = []
    for part in key.split("."):
        current = _strip_optional(current)
        if dataclasses.is_dataclass(current):
            names = [field.name for field in dataclasses.fields(current)]
            if part not in names:
                return unknown("key", ".".join([*walked, part]), [".".join([*walked, name]) for name in names])
            current = get_type_hints(current)[part]
        elif get_origin(current) is dict:
            # The stages' names are a table; a model's own config.json facts take any key.
            if walked == STAGES_PATH and part not in stages:
                return unknown("stage", part, stages)
            current = get_args(current)[1]
        elif current is not Any:
            return f"{'.'.join(walked)} is a value, it has no {part!r}"
        walked.append(part)
    return None


def _value_problem(override: Override, key: str, schema: type) -> str | None:
    if override.is_delete():
        return None
    nested: Any = override.value()
    for part in reversed(key.split(".")):
        nested = {part: nested}
    try:
        OmegaConf.merge(OmegaConf.structured(schema), nested)
    except OmegaConfBaseException as error:
        return f"{key}={override.get_value_element_as_str()}: {str(error).splitlines()[0]}"
    return None


def _strip_optional(hint: Any) -> Any:
    inner = [part for part in get_args(hint) if part is not type(None)]
    is_optional = type(None) in get_args(hint)
    return inner[0] if is_optional and len(inner) == 1 else hint


def _first_lines(error: Exception) -> str:
    """Hydra's and OmegaConf's messages without their trailing object dumps."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("object_type="))
