from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.engine.errors import ConfigError
from pipeline.servers.derive import model_facts
from pipeline.workload.declared import Declared
from pipeline.workload.families import deepseek as family
from pipeline.workload.hf_config import Facts, Model, read_config, read_hf_quant_config
from pipeline.workload.parallel import Parallel
from tests.servers.recipes import TINY, tiny, workload_of


@pytest.mark.parametrize("path", [TINY, TINY / "config.json"], ids=["folder", "file"])
def test_a_config_is_found_by_its_path_or_its_folder(path: object) -> None:
    read = workload_of(Model(name="tiny", hf_config=str(path)), Parallel()).facts
    assert read == workload_of(tiny(), Parallel()).facts


def test_a_config_of_the_users_own_replaces_the_shipped_facts() -> None:
    content, problems = read_config(Model(name="any", hf_config=str(TINY), config={"hidden_size": 1}))
    assert problems == []
    assert content["hidden_size"] == 512


@pytest.mark.parametrize("name", ["n_shared_experts", "first_k_dense_replace"])
def test_an_absent_count_means_none_of_them(name: str) -> None:
    config = {key: value for key, value in tiny().config.items() if key != name}
    facts = Facts(config, "here")
    read = family.read(facts, "DeepseekV3ForCausalLM")
    assert facts.errors == []
    assert read.experts is not None
    first_moe = next(layer for layer in range(read.num_layers) if read.is_moe(layer))
    assert {"n_shared_experts": read.experts.num_shared, "first_k_dense_replace": first_moe}[name] == 0


def test_null_shared_experts_mean_none_of_them() -> None:
    # The default of n_shared_experts in DeepSeek's own configuration class is null, and the model builds none then.
    facts = Facts(tiny().config | {"n_shared_experts": None}, "here")
    read = family.read(facts, "DeepseekV3ForCausalLM")
    assert facts.errors == []
    assert read.experts is not None
    assert read.experts.num_shared == 0


def test_experts_are_on_every_nth_layer_after_the_dense_ones() -> None:
    facts = workload_of(tiny(num_hidden_layers=8, first_k_dense_replace=3, moe_layer_freq=2), Parallel()).facts
    assert [layer for layer in range(facts.num_layers) if not facts.is_moe(layer)] == [0, 1, 2, 3, 5, 7]


def test_what_the_files_say_of_the_quantisation_is_kept_as_written() -> None:
    config = {"quantization_config": {"quant_method": "fp8"}}
    assert Facts(config, "here", {"producer": {}}).declared == Declared(config, {"producer": {}})


def test_modelopts_file_is_read_from_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert read_hf_quant_config(Model(hf_config=str(tmp_path))) == (None, [])
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    expected = ({"quantization": {"quant_algo": "FP8"}}, [])
    assert read_hf_quant_config(Model(hf_config=str(tmp_path))) == expected
    assert read_hf_quant_config(Model(hf_config=str(tmp_path / "config.json"))) == expected


def test_a_modelopt_file_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "hf_quant_config.json").write_text("{")
    _, (line,) = read_hf_quant_config(Model(hf_config=str(tmp_path)))
    assert "hf_quant_config.json is not JSON" in line
    _, (line,) = model_facts(Model(hf_config=str(tmp_path)))
    assert "hf_quant_config.json is not JSON" in line


# What is wrong with the file.


def refusal(model: Model) -> list[str]:
    """The lines of the ConfigError that a plan of this model ends with."""
    with pytest.raises(ConfigError) as refused:
        workload_of(model, Parallel())
    return refused.value.lines


def written(folder: Path, content: str) -> Model:
    """A model whose config.json holds this text."""
    path = folder / "config.json"
    path.write_text(content)
    return Model(name="mine", hf_config=str(path))


def test_a_missing_config_is_refused(tmp_path: Path) -> None:
    (line,) = refusal(Model(name="mine", hf_config=str(tmp_path / "nowhere" / "config.json")))
    assert line.startswith("model.hf_config: cannot read")


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    (line,) = refusal(Model(name="mine", hf_config=str(tmp_path)))
    assert line.startswith(f"model.hf_config: cannot read {tmp_path / 'config.json'}")


@pytest.mark.parametrize("content", ["", "{", "architectures: [a]", "\x00"], ids=["empty", "cut", "yaml", "binary"])
def test_a_config_that_is_not_json_is_refused(tmp_path: Path, content: str) -> None:
    (line,) = refusal(written(tmp_path, content))
    assert line.startswith("model.hf_config")
    assert "is not JSON" in line


def test_a_config_in_no_text_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x80\x81")
    (line,) = refusal(Model(name="mine", hf_config=str(tmp_path)))
    assert line.startswith("model.hf_config")


@pytest.mark.parametrize(("content", "kind"), [("[1, 2]", "list"), ('"text"', "str"), ("null", "NoneType")])
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, content: str, kind: str) -> None:
    (line,) = refusal(written(tmp_path, content))
    assert line.startswith("model.hf_config")
    assert f"holds a {kind}" in line
