"""From command line and YAML to one typed recipe.

The untyped tree lives here, in overrides.py and in run.py only.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from pipeline.engine.errors import ConfigError
from pipeline.engine.stage import Stage

SCHEMA = "recipe_schema"


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """What a recipe may hold."""

    recipe: type
    """The recipe's dataclass, with one field for each stage that has options."""
    variants: Mapping[str, Mapping[str, type]]
    """Fields whose own class is chosen by the config group of their name: field, option of the group, class."""


def make_schema(recipe: type, stages: Mapping[str, type[Stage]], variants: Mapping[str, Mapping[str, type]]) -> Schema:
    """The recipe's dataclass with one more field for each stage that has options."""
    options = [
        (name, cls, dataclasses.field(default_factory=cls)) for name, cls in stages.items() if dataclasses.fields(cls)
    ]
    return Schema(dataclasses.make_dataclass("RecipeWithStages", options, bases=(recipe,), kw_only=True), variants)


def register(schema: Schema) -> None:
    """Make the schema known to Hydra: conf/config.yaml starts from it, conf/<field>/<option>.yaml from its variants."""
    store = ConfigStore.instance()
    store.store(name=SCHEMA, node=schema.recipe)
    for field, classes in schema.variants.items():
        for option, cls in classes.items():
            store.store(name=variant_name(field, option), node=cls, package=field)


def variant_name(field: str, option: str) -> str:
    """What a variant is called in a defaults list."""
    return f"{field}_{option}"


def composed(
    overrides: Sequence[str], config_dir: Path, *, config_name: str = "config", more_dirs: Sequence[Path] = ()
) -> DictConfig:
    """Compose without running; ConfigError when Hydra or OmegaConf refuse."""
    # Hydra looks for the primary config in one folder only, and for groups in the others too.
    folders = [config_dir, *more_dirs]
    primary = next((folder for folder in folders if (folder / f"{config_name}.yaml").is_file()), config_dir)
    searched = [f"file://{folder}" for folder in folders if folder != primary]
    search_path = [f"hydra.searchpath=[{','.join(searched)}]"] if searched else []
    try:
        with initialize_config_dir(str(primary), version_base="1.3"):
            return compose(config_name, [*overrides, *search_path])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(_first_lines(error)) from error


def to_recipe(raw: DictConfig) -> Any:
    """The typed recipe; ConfigError when an interpolation or a value does not resolve."""
    try:
        return OmegaConf.to_object(raw)
    except OmegaConfBaseException as error:
        raise ConfigError(_first_lines(error)) from error


def with_pipeline(raw: DictConfig, path: Path) -> DictConfig:
    """The recipe with the pipeline of this file in place of its own; the file's other options come along."""
    changes = OmegaConf.load(path)
    assert isinstance(changes, DictConfig), f"{path} holds a mapping"
    emptied = copy.deepcopy(raw)
    OmegaConf.set_struct(emptied, False)
    emptied.pipeline.stages = {}
    merged = OmegaConf.merge(emptied, changes)
    assert isinstance(merged, DictConfig), "a mapping was merged with a mapping"
    return merged


def to_yaml(raw: DictConfig, schema: Schema) -> str:
    """The composed recipe as YAML that composes to itself: run.py recipe=PATH."""
    chosen = [
        variant_name(field, option)
        for field, classes in schema.variants.items()
        for option, cls in classes.items()
        if OmegaConf.get_type(raw, field) is cls
    ]
    defaults = ", ".join([SCHEMA, *chosen, "hydra_settings", "_self_"])
    return f"defaults: [{defaults}]\n" + OmegaConf.to_yaml(raw, resolve=True)


def require_replayable(path: Path, schema: Schema) -> None:
    """ConfigError for a recipe file that an older release left: its parts are named differently."""
    named = {variant_name(field, option) for field, classes in schema.variants.items() for option in classes}
    try:
        content = OmegaConf.load(path)
    except (OSError, ValueError, YAMLError) as error:
        raise ConfigError(f"recipe: cannot read {path}: {_first_lines(error)}") from error
    defaults = content.get("defaults") if isinstance(content, DictConfig) else None
    if not isinstance(defaults, ListConfig) or not named.intersection(map(str, defaults)):
        raise ConfigError(
            f"recipe: {path} was not written by this release of Preheat (its defaults name none of "
            f"{', '.join(sorted(named))}); bake once more with the options that it holds"
        )


def _first_lines(error: Exception) -> str:
    """Hydra's and OmegaConf's messages without their trailing object dumps."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line and not line.startswith("object_type="))
