from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.shared.checkpoint import write_checkpoint
from pipeline.workload.hf_config import Model


def test_one_content_has_one_folder(tmp_path: Path):
    model = Model(name="m", config={"hidden_size": 8})
    folder = write_checkpoint(model, tmp_path)
    assert folder == write_checkpoint(model, tmp_path)
    assert json.loads((folder / "config.json").read_text()) == {"hidden_size": 8}
    assert folder != write_checkpoint(Model(name="m", config={"hidden_size": 16}), tmp_path)


def test_small_files_beside_a_config_come_along_and_weights_do_not(tmp_path: Path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "config.json").write_text('{"hidden_size": 8}')
    (source / "configuration_m.py").write_text("")
    (source / "model.safetensors").write_text("weights")
    (source / "model.safetensors.index.json").write_text("{}")
    folder = write_checkpoint(Model(name="m", hf_config=str(source)), tmp_path / "checkpoints")
    assert {path.name for path in folder.iterdir()} == {"config.json", "configuration_m.py"}


def test_a_config_that_cannot_be_read_is_told(tmp_path: Path):
    with pytest.raises(ConfigError, match="cannot read"):
        write_checkpoint(Model(name="m", hf_config=str(tmp_path / "nowhere")), tmp_path)


def test_modelopts_file_comes_along_with_a_single_config_and_names_the_folder(tmp_path: Path):
    (tmp_path / "config.json").write_text('{"hidden_size": 8}')
    model = Model(name="m", hf_config=str(tmp_path / "config.json"))
    plain = write_checkpoint(model, tmp_path / "checkpoints")
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    quantised = write_checkpoint(model, tmp_path / "checkpoints")
    assert {path.name for path in plain.iterdir()} == {"config.json"}
    assert {path.name for path in quantised.iterdir()} == {"config.json", "hf_quant_config.json"}
