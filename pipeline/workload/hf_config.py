"""Read a Hugging Face config.json into typed facts; everything that is wrong with it is found at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FP8_BLOCK_METHODS = ("fp8",)


@dataclass(kw_only=True, slots=True)
class Model:
    """Which checkpoint; its facts come from a shipped file or from its own config.json."""

    name: str = ""
    """Short name, part of the default output directory."""
    hf_config: str | None = None
    """Path of a config.json, or of the folder that holds it; None means the shipped facts."""
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    """The shipped facts, by their names in config.json."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """How the checkpoint's linear layers are stored; `block` is (N, K) of one scale, None when not block FP8."""

    method: str | None
    block: tuple[int, int] | None


def read_config(model: Model) -> tuple[Mapping[str, Any], list[str]]:
    """(the config's fields, what is wrong with the file)."""
    if model.hf_config is None:
        missing = [] if model.config else [f"model {model.name!r} ships no facts; give model.hf_config=PATH"]
        return model.config, missing
    path = Path(model.hf_config)
    path = path / "config.json" if path.is_dir() else path
    try:
        content = json.loads(path.read_text())
    except OSError as error:
        return {}, [f"model.hf_config: cannot read {path}: {error.strerror}; give the path of a config.json"]
    except ValueError as error:
        return {}, [f"model.hf_config: {path} is not JSON: {error}; is the download complete?"]
    if not isinstance(content, dict):
        return {}, [f"model.hf_config: {path} holds a {type(content).__name__}, a config.json holds an object"]
    return content, []


class Facts:
    """Takes fields out of a config, noting each that is absent or of the wrong kind instead of stopping there."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        self._config = config
        self._where = where
        self.problems: list[str] = []

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`; where it is wrong the answer is `least`, and a problem is noted."""
        value = self._config.get(name)
        value = default if value is None else value
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        got = "nothing" if value is None else repr(value)
        self.problems.append(f"{self._where}: {name} must be a whole number of at least {least}, got {got}")
        return least

    def optional_integer(self, name: str) -> int | None:
        """A whole number, or None where the config has null or nothing."""
        return None if self._config.get(name) is None else self.integer(name)

    def quantization(self) -> Quantization:
        """What quantization_config says."""
        found = self._config.get("quantization_config")
        if not isinstance(found, Mapping):
            return Quantization(method=None, block=None)
        method, block = found.get("quant_method"), found.get("weight_block_size")
        if method not in FP8_BLOCK_METHODS or block is None:
            return Quantization(method=method, block=None)
        sizes = list(block) if isinstance(block, list | tuple) else []
        if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
            self.problems.append(f"{self._where}: weight_block_size must be two whole numbers, got {block!r}")
            return Quantization(method=method, block=None)
        return Quantization(method=method, block=(sizes[0], sizes[1]))


def architecture(config: Mapping[str, Any]) -> str | None:
    """The first of `architectures`."""
    found = config.get("architectures")
    return found[0] if isinstance(found, list | tuple) and found and isinstance(found[0], str) else None
