"""The folder that the server takes for the checkpoint: its config.json and no weights."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from pipeline.engine.errors import ConfigError
from pipeline.engine.report import write_atomically
from pipeline.workload.hf_config import HF_QUANT_CONFIG, Model, read_config, read_hf_quant_config

# Files that a server may read beside config.json; it starts with dummy weights.
BESIDE_CONFIG = ("*.json", "*.py")
MAX_BYTES = 1 << 20


def write_checkpoint(model: Model, root: Path) -> Path:
    """Write the model's config.json into a folder under `root` that is named by its content.

    Where model.hf_config names a folder, the small files beside its config.json are copied too.
    """
    config, errors = read_config(model)
    quantised, more_errors = read_hf_quant_config(model)
    if errors or more_errors:
        raise ConfigError(*errors, *more_errors)
    text = json.dumps(dict(config), indent=2)
    content = text if quantised is None else text + json.dumps(dict(quantised))
    folder = root / f"{model.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    source = None if model.hf_config is None else Path(model.hf_config)
    if source is not None:
        for path in _beside_config(source):
            shutil.copy(path, folder / path.name)
    write_atomically(folder / "config.json", text)
    return folder


def _beside_config(source: Path) -> list[Path]:
    """The small files of a checkpoint's folder; beside a single file only the one that says how it is quantised."""
    if not source.is_dir():
        quantised = source.parent / HF_QUANT_CONFIG
        return [quantised] if quantised.is_file() else []
    paths = [path for pattern in BESIDE_CONFIG for path in source.glob(pattern)]
    return [path for path in paths if path.stat().st_size <= MAX_BYTES and "index" not in path.name]
