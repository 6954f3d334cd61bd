from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.errors import ConfigError, NoRulesError
from pipeline.servers.no_rules import NoRules, architecture_without_rules, pipeline_errors
from pipeline.workload.hf_config import Model
from pipeline.workload.parallel import Parallel
from tests.engine.program import Place, assert_refused
from tests.servers.recipes import ROOT, tiny, workload_of

UNKNOWN = "Qwen3VLMoeForConditionalGeneration"
WITHOUT_RULES = (f"model.hf_config={ROOT / 'tests' / 'models' / 'qwen3_vl_moe'}", "model.name=vl", "parallel=tp2")


def refused(model: Model, parallel: Parallel, **flags: Any) -> ConfigError:
    """The ConfigError that a derivation ends with."""
    with pytest.raises(ConfigError) as caught:
        workload_of(model, parallel, **flags)
    return caught.value


def test_the_sentence_names_what_the_rules_do_not_know() -> None:
    assert NoRules(("A", "B"), 2).sentence == "no rules for A, B: the server is asked"
    assert NoRules(("A",), 2).nothing_to_run.startswith("no rules for A: the server is asked; ")


def test_an_architecture_that_no_family_reads_is_named_and_others_are_not() -> None:
    assert architecture_without_rules(tiny(architectures=[UNKNOWN])) == UNKNOWN
    assert architecture_without_rules(tiny()) is None
    assert architecture_without_rules(tiny(architectures=None, model_type="unheard")) is None, "nobody can be asked"
    assert architecture_without_rules(Model(name="without facts")) is None


def test_files_that_cannot_be_read_are_wrong_whatever_the_architecture(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": [UNKNOWN]}))
    (tmp_path / "hf_quant_config.json").write_text("{")
    assert architecture_without_rules(Model(hf_config=str(tmp_path))) is None


def test_rules_alone_refuse_it_and_say_who_can_be_asked() -> None:
    error = refused(tiny(architectures=[UNKNOWN]), Parallel())
    assert isinstance(error, NoRulesError)
    assert (error.subjects, error.wrong) == ((UNKNOWN,), [])
    (line,) = error.lines
    assert f"architecture '{UNKNOWN}'" in line
    assert line.endswith("; discovery=server asks the server")


def test_a_server_that_cannot_be_asked_is_not_offered() -> None:
    (line,) = refused(tiny(architectures=[UNKNOWN]), Parallel(), name="vllm").lines
    assert UNKNOWN in line
    assert "discovery=server" not in line


def test_what_else_is_wrong_is_kept_apart() -> None:
    error = refused(tiny(architectures=[UNKNOWN]), Parallel(tp=8, attn_dp=3), tokens_per_request=0)
    assert isinstance(error, NoRulesError)
    assert len(error.wrong) == 2
    assert error.lines[1:] == error.wrong


@pytest.mark.parametrize("part", ["", "text_config", "llm_config", "language_config"])
def test_the_layers_of_a_pipeline_are_counted_where_the_config_keeps_its_language_model(part: str) -> None:
    count = {"num_hidden_layers": 4}
    model = Model(name="unheard", config={part: count} if part else count)
    assert pipeline_errors(model, Parallel(pp=4)) == []
    (line,) = pipeline_errors(model, Parallel(pp=8))
    assert "exceeds the model's 4 layers" in line
    (line,) = pipeline_errors(model, Parallel(pp=2, layer_partition=[1, 2]))
    assert "parallel.layer_partition" in line


@pytest.mark.parametrize("count", [None, 0, "four"])
def test_a_pipeline_over_layers_that_nobody_can_count_is_refused(count: Any) -> None:
    model = Model(name="unheard", config={"num_hidden_layers": count})
    assert pipeline_errors(model, Parallel()) == []
    (line,) = pipeline_errors(model, Parallel(pp=2))
    assert line.startswith("parallel.pp 2: the config names no num_hidden_layers")


def test_the_program_plans_it_where_the_server_is_asked_and_refuses_it_elsewhere(tmp_path: Path) -> None:
    place = Place(tmp_path)
    asked = place.preheat(*WITHOUT_RULES, "discovery=server", "mode=plan")
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.startswith(f"no rules for {UNKNOWN}: the server is asked\n")
    as_json = place.preheat(*WITHOUT_RULES, "discovery=server", "mode=plan", "plan.format=json")
    assert as_json.returncode == 0, as_json.stderr
    assert json.loads(as_json.stdout)["no_rules"] == f"no rules for {UNKNOWN}: the server is asked"
    refused = place.preheat(*WITHOUT_RULES, "discovery=rules", "mode=plan")
    assert_refused(refused, UNKNOWN, "discovery=server asks the server")
