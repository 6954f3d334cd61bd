"""What is wrong with the overrides of a command line: everything at once, with the nearest name and the choices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.engine.config import Schema, composed
from pipeline.engine.errors import ConfigError, unknown

STAGES_PATH = ["pipeline", "stages"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """Checks overrides against the schema, the config groups and the names of the stages."""

    schema: Schema
    config_dirs: Sequence[Path]
    """The shipped folder first."""
    config_name: str
    stages: Sequence[str]

    def errors(self, overrides: Sequence[str]) -> list[str]:
        """What is wrong with each override, one line each."""
        groups = _groups(self.config_dirs)
        errors: list[str] = []
        parsed: list[Override] = []
        for argument in overrides:
            try:
                parsed += _choices(OverridesParser.create().parse_override(argument))
            except HydraException as error:
                errors.append(f"{argument!r} is not KEY=VALUE: {str(error).splitlines()[0]}")
        chosen = {field: self._chosen(field, parsed, groups) for field in self.schema.variants}
        for override in parsed:
            error = self._error(override, groups, chosen)
            errors += [error] if error else []
        return list(dict.fromkeys(errors))

    def _chosen(self, field: str, overrides: Sequence[Override], groups: Mapping[str, Sequence[str]]) -> list[type]:
        """The classes that a field may have under these overrides; none when that cannot be told."""
        classes = self.schema.variants[field]
        named = [str(override.value()) for override in overrides if override.key_or_group == field]
        if named:
            return [classes[name] for name in named if name in classes]
        first, *more = self.config_dirs
        try:
            recipe = composed(_shared_options(overrides, groups), first, config_name=self.config_name, more_dirs=more)
        except ConfigError:
            return []
        kind = OmegaConf.get_type(recipe, field)
        return [cls for cls in classes.values() if cls is kind]

    def _error(
        self, override: Override, groups: Mapping[str, Sequence[str]], chosen: Mapping[str, Sequence[type]]
    ) -> str | None:
        key = _key(override)
        field = key.split(".")[0]
        if field == "hydra" or key.startswith("hydra/"):
            return None
        if _is_group_option(override, groups):
            return _group_error(override, groups[key])
        kinds = chosen.get(field) or self.schema.variants.get(field, {}).values() or [None]
        errors = [self._key_error(key, field, kind) or self._value_error(override, key, field, kind) for kind in kinds]
        wrong = [error for error in errors if error]
        # Where the class cannot be told, one that takes the override is enough.
        is_refused = bool(wrong) and (bool(chosen.get(field)) or len(wrong) == len(errors))
        return wrong[0] if is_refused else None

    def _key_error(self, key: str, field: str, kind: type | None) -> str | None:
        current: Any = self.schema.recipe
        walked: list[str] = []
        for part in key.split("."):
            current = _strip_optional(kind if walked == [field] and kind is not None else current)
            if dataclasses.is_dataclass(current):
                names = [option.name for option in dataclasses.fields(current)]
                if part not in names:
                    owners = self._owners(field, part) if walked == [field] else []
                    return _unknown_key([*walked, part], names, owners)
                current = get_type_hints(current)[part]
            elif get_origin(current) is dict:
                # The stages' names are a table; a model's own config.json facts take any key.
                if walked == STAGES_PATH and part not in self.stages:
                    return unknown("stage", part, self.stages)
                current = get_args(current)[1]
            elif current is not Any:
                return f"{'.'.join(walked)} is a value, it has no {part!r}"
            walked.append(part)
        return None

    def _owners(self, field: str, part: str) -> list[str]:
        """The variants of a field that do have this option."""
        return [
            f"{field}={option}"
            for option, cls in self.schema.variants.get(field, {}).items()
            if part in (field.name for field in dataclasses.fields(cls))
        ]

    def _value_error(self, override: Override, key: str, field: str, kind: type | None) -> str | None:
        if override.is_delete():
            return None
        nested: Any = override.value()
        for part in reversed(key.split(".")):
            nested = {part: nested}
        try:
            tree = OmegaConf.structured(self.schema.recipe)
            if kind is not None:
                tree[field] = OmegaConf.structured(kind)
            OmegaConf.merge(tree, nested)
        except OmegaConfBaseException as error:
            return f"{key}={override.get_value_element_as_str()}: {str(error).splitlines()[0]}"
        return None


def without_sweeps(overrides: Sequence[str]) -> list[str]:
    """What the recipes of a multirun share."""
    parser = OverridesParser.create()
    return [text for text in overrides if not parser.parse_override(text).is_sweep_override()]


def _choices(override: Override) -> list[Override]:
    """The override itself, or one for each value of a multirun's list."""
    if not override.is_sweep_override():
        return [override]
    key = override.input_line.split("=")[0] if override.input_line else override.key_or_group
    return [OverridesParser.create().parse_override(f"{key}={value}") for value in override.sweep_string_iterator()]


def _key(override: Override) -> str:
    """Without the package that may follow a group: group@package."""
    return override.key_or_group.split("@")[0]


def _is_group_option(override: Override, groups: Mapping[str, Sequence[str]]) -> bool:
    return _key(override) in groups and isinstance(override.value(), str | None)


def _shared_options(overrides: Sequence[Override], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """The options of groups that every recipe of the command line has, without those that do not exist."""
    options: dict[str, list[str]] = {}
    for override in overrides:
        if _is_group_option(override, groups) and not _group_error(override, groups[_key(override)]):
            options.setdefault(_key(override), []).append(override.input_line or "")
    return [option for several in options.values() if len(several) == 1 for option in several]


def _groups(config_dirs: Iterable[Path]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for root in config_dirs:
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            groups.setdefault(folder.name, []).extend(sorted(path.stem for path in folder.glob("*.yaml")))
    return groups


def _group_error(override: Override, choices: Sequence[str]) -> str | None:
    value = override.value()
    if override.is_delete() or value is None or str(value) in choices:
        return None
    return unknown(f"{override.key_or_group}: option", str(value), choices)


def _unknown_key(path: Sequence[str], names: Sequence[str], owners: Sequence[str]) -> str:
    key = ".".join(path)
    if owners:
        return f"{key} is an option of {' and '.join(owners)}, not of the {path[0]} that this recipe has"
    parents = path[:-1]
    return unknown("key", key, [".".join([*parents, name]) for name in names])


def _strip_optional(hint: Any) -> Any:
    inner = [part for part in get_args(hint) if part is not type(None)]
    is_optional = type(None) in get_args(hint)
    return inner[0] if is_optional and len(inner) == 1 else hint
