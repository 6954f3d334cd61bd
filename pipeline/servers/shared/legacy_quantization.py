"""What a checkpoint's quantization_config says: which linears are block FP8, and why the others are not.

Sources: SGLang 0.5.23 layers/quantization/fp8.py Fp8Config.from_config, utils.py is_layer_skipped and
compressed_tensors/; the files of the checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.servers.shared.quantization import ModuleKind
from pipeline.workload.declared import Declared
from pipeline.workload.model import ModelFacts
from pipeline.workload.scheme import PLAIN, Format, Scheme

# Modules that servers merge, and the names under which a checkpoint lists their parts.
MERGED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "in_proj_qkvz": ("in_proj_qkv", "in_proj_z"),
    "in_proj_ba": ("in_proj_b", "in_proj_a"),
    "wqkv_a": ("wq_a", "wkv"),
    "experts": ("experts.0.gate_proj", "experts.0.down_proj"),
}
MXFP8_BLOCK = (1, 32)


@dataclass(frozen=True, slots=True)
class CheckpointQuantization:
    """How linear layers are stored; `block` is (N, K) of one FP8 scale, None when they are not block FP8."""

    method: str | None
    block: tuple[int, int] | None
    scheme: str = "not quantised"
    """What it is, for people."""
    ignored: tuple[str, ...] = ()
    """Modules that stay in the model's dtype: dotted paths or their ends, or regular expressions after "re:"."""

    @property
    def is_compressed_tensors(self) -> bool:
        """Whether compressed-tensors wrote it; SGLang has no DeepGEMM runner for its experts."""
        return self.method == "compressed-tensors"

    def ignores(self, module: str, layers: Iterable[int]) -> bool:
        """Whether the checkpoint keeps a layer's module (self_attn.o_proj) unquantised, in all these layers."""
        names = _spellings(module)
        return bool(self.ignored) and all(
            any(self._names(f"model.layers.{layer}.{name}") for name in names) for layer in layers
        )

    def _names(self, path: str) -> bool:
        return any(_matches(entry, path) for entry in self.ignored)


def read_quantization(config: Any) -> tuple[CheckpointQuantization, list[str]]:
    """(what it says, what is wrong with it); nothing at all is a bf16 checkpoint."""
    if not isinstance(config, Mapping):
        return CheckpointQuantization(None, None, "bf16"), [] if config is None else [
            "quantization_config must be an object"
        ]
    method = str(config.get("quant_method", "")).lower() or None
    ignored = tuple(
        str(entry)
        for name in ("ignored_layers", "modules_to_not_convert", "ignore")
        for entry in config.get(name) or ()
    )
    if method == "compressed-tensors":
        return _compressed_tensors(config, ignored), []
    if method is None:
        return CheckpointQuantization(None, None, "not named"), ["quantization_config has no quant_method"]
    if "mxfp8" in method:
        return CheckpointQuantization(method, MXFP8_BLOCK, "MXFP8: FP8 with 1x32 scales", ignored), []
    if method != "fp8":
        return CheckpointQuantization(method, None, f"{method}, not block FP8", ignored), []
    block = config.get("weight_block_size")
    if block is None:
        return CheckpointQuantization(method, None, "FP8 with a scale for each tensor or channel", ignored), []
    sizes = list(block) if isinstance(block, list | tuple) else []
    if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        return CheckpointQuantization(method, None), [f"weight_block_size must be two whole numbers, got {block!r}"]
    return CheckpointQuantization(
        method, (sizes[0], sizes[1]), f"FP8 with {sizes[0]}x{sizes[1]} scale blocks", ignored
    ), []


def _compressed_tensors(config: Mapping[str, Any], ignored: tuple[str, ...]) -> CheckpointQuantization:
    groups = config.get("config_groups")
    weights = [group.get("weights") or {} for group in groups.values()] if isinstance(groups, Mapping) else []
    for weight in weights:
        structure = weight.get("block_structure")
        if weight.get("strategy") == "block" and weight.get("num_bits") == 8 and structure:
            block = (int(structure[0]), int(structure[1]))
            return CheckpointQuantization(
                "compressed-tensors", block, f"FP8 with {block[0]}x{block[1]} scale blocks", ignored
            )
    kinds = ", ".join(
        f"{w.get('num_bits', '?')}-bit {w.get('type', '?')} per {w.get('strategy', '?')}" for w in weights
    )
    return CheckpointQuantization("compressed-tensors", None, f"compressed-tensors, {kinds or 'no group'}", ignored)


def _spellings(module: str) -> list[str]:
    head, _, last = module.rpartition(".")
    prefix = f"{head}." if head else ""
    return [module, *(f"{prefix}{part}" for part in MERGED.get(last, ()))]


def _matches(entry: str, path: str) -> bool:
    if entry.startswith("re:"):
        return re.match(entry.removeprefix("re:"), path) is not None
    dotted = f".{path.replace('model.language_model.', 'model.')}."
    module = entry.replace("language_model.", "")
    return f".{module}." in dotted or dotted.endswith(f".{module}.")


@dataclass(frozen=True, slots=True)
class WholeCheckpoint:
    """One answer for the whole checkpoint, but for the modules that it names."""

    stored: CheckpointQuantization
    errors: tuple[str, ...]

    @property
    def method(self) -> str | None:
        """The checkpoint's method."""
        return self.stored.method

    def scheme(self, module: str, kind: ModuleKind = ModuleKind.LINEAR) -> Scheme:
        """Its scheme, or PLAIN where the checkpoint names the module."""
        name, layer = module.split("@")
        stored = self.stored
        if kind is ModuleKind.LM_HEAD or stored.method is None or stored.ignores(name, (int(layer),)):
            return PLAIN
        formats = {(1, 32): Format.MXFP8, None: Format.FP8_TENSOR}
        return Scheme(
            format=formats.get(stored.block, Format.FP8_BLOCK),
            text=stored.scheme,
            block=stored.block,
            method=stored.method,
        )


def resolve_whole(declared: Declared) -> WholeCheckpoint:
    """By quantization_config alone."""
    text = declared.config.get("text_config")
    config = {**declared.config, **text} if isinstance(text, Mapping) else declared.config
    stored, errors = read_quantization(config.get("quantization_config"))
    return WholeCheckpoint(stored, tuple(errors))


def not_handed(facts: ModelFacts, name: str, declared: Declared, method: str | None, *, draft: bool) -> str | None:
    """Nothing is known of it here."""
    return None


def module_path(facts: ModelFacts, name: str, layer: int, *, draft: bool = False) -> str:
    """The name and the layer."""
    return f"{name}@{layer}"


def module_kind(name: str) -> ModuleKind:
    """By its name."""
    return ModuleKind.LM_HEAD if name == "lm_head" else ModuleKind.LINEAR
