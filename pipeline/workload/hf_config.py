"""Read a Hugging Face config.json into typed facts; everything that is wrong with it is found at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.workload.declared import Declared
from pipeline.workload.module_lists import with_every_layer

CONFIG = "config.json"
HF_QUANT_CONFIG = "hf_quant_config.json"


@dataclass(kw_only=True, slots=True)
class Model:
    """Which checkpoint; its facts come from a shipped file or from its own config.json."""

    name: str = ""
    """Short name, part of the default output directory."""
    hf_config: str | None = None
    """Path of a config.json, or of the folder that holds it; None means the shipped facts."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """The shipped facts, by their names in config.json."""


def read_config(model: Model) -> tuple[Mapping[str, Any], list[str]]:
    """(the config's fields, what is wrong with the file)."""
    if model.hf_config is None:
        missing = [] if model.config else [f"model {model.name!r} ships no facts; give model.hf_config=PATH"]
        return with_every_layer(model.config), missing
    path = Path(model.hf_config)
    return _read_object(path / CONFIG if path.is_dir() else path)


def read_hf_quant_config(model: Model) -> tuple[Mapping[str, Any] | None, list[str]]:
    """(the fields of hf_quant_config.json beside config.json, what is wrong with it); None where there is no file."""
    if model.hf_config is None:
        return None, []
    path = Path(model.hf_config)
    beside = (path if path.is_dir() else path.parent) / HF_QUANT_CONFIG
    return _read_object(beside) if beside.is_file() else (None, [])


def _read_object(path: Path) -> tuple[Mapping[str, Any], list[str]]:
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        return {}, [f"model.hf_config: cannot read {path}: {error.strerror}; give the path of a {CONFIG}"]
    except ValueError as error:
        return {}, [f"model.hf_config: {path} is not JSON: {error}; is the download complete?"]
    if not isinstance(content, dict):
        return {}, [f"model.hf_config: {path} holds a {type(content).__name__}, a {path.name} holds an object"]
    return content, []


class Facts:
    """Takes fields out of a config, noting each that is absent or of the wrong kind instead of stopping there.

    A multimodal config keeps its language model in `text_config`; its fields come first.
    """

    def __init__(self, config: Mapping[str, Any], where: str, hf_quant_config: Mapping[str, Any] | None = None) -> None:
        nested = config.get("text_config")
        self._config = {**config, **nested} if isinstance(nested, Mapping) else dict(config)
        self._where = where
        self.declared = Declared(config, hf_quant_config)
        self.errors: list[str] = []

    def get(self, name: str) -> Any:
        """The field as it is, None where it is absent."""
        return self._config.get(name)

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; where it is wrong the answer is `least`, and an error is noted."""
        value = self._config.get(name)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self._note(f"{name} must be a whole number of at least {least}", value)
        return least

    def optional_integer(self, name: str) -> int | None:
        """A whole number, or None where the config has null or nothing."""
        return None if self._config.get(name) is None else self.integer(name)

    def flag(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self._config.get(name)
        if isinstance(value, bool):
            return value
        if value is not None:
            self._note(f"{name} must be true or false", value)
        return default

    def per_layer(self, name: str, num_layers: int) -> list[Any]:
        """A list with an entry for each layer (more are allowed: some checkpoints count their MTP layer)."""
        value = self._config.get(name)
        if isinstance(value, list | tuple) and len(value) >= num_layers:
            return list(value)[:num_layers]
        self._note(f"{name} must be a list with an entry for each of the {num_layers} layers", value)
        return [0] * num_layers

    def _note(self, expected: str, value: Any) -> None:
        got = "nothing" if value is None else repr(value)
        self.errors.append(f"{self._where}: {expected}, got {got}")


def architecture(config: Mapping[str, Any]) -> str | None:
    """The first of `architectures`."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list | tuple) and names and isinstance(names[0], str) else None
