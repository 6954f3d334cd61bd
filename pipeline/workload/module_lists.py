"""Module lists of shipped facts: a checkpoint names every layer, a shipped file writes * for the layer's number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EVERY_LAYER = ".*."
QUANTIZATION = "quantization_config"
TEXT = "text_config"
# The names under which quantisers list what they leave alone.
LISTS = ("ignored_layers", "modules_to_not_convert", "ignore")


def with_every_layer(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config as the checkpoint has it: model.layers.*.mlp.gate becomes an entry for each layer.

    Regular expressions ("re:") stay as they are.
    """
    nested = config.get(TEXT)
    num_layers = (nested if isinstance(nested, Mapping) else config).get("num_hidden_layers") or 0
    expanded = dict(config)
    if isinstance(nested, Mapping):
        expanded[TEXT] = _expanded(nested, num_layers)
    return _expanded(expanded, num_layers)


def _expanded(config: Mapping[str, Any], num_layers: int) -> dict[str, Any]:
    quantization = config.get(QUANTIZATION)
    if not isinstance(quantization, Mapping):
        return dict(config)
    lists = {name: _each_layer(quantization[name], num_layers) for name in LISTS if quantization.get(name)}
    return {**config, QUANTIZATION: {**quantization, **lists}}


def _each_layer(entries: list[str], num_layers: int) -> list[str]:
    modules: list[str] = []
    for entry in entries:
        if EVERY_LAYER in entry and not entry.startswith("re:"):
            modules += [entry.replace(EVERY_LAYER, f".{layer}.") for layer in range(num_layers)]
        else:
            modules.append(entry)
    return modules
