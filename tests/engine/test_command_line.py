"""How a command line is taken apart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pipeline.engine.command_line import parse
from pipeline.engine.errors import ConfigError

TEXT = ("server.args", "plan.explain")


@pytest.mark.parametrize(
    "value",
    [
        "512,7168,257",
        "--tp 8 --cuda-graph-bs 1,2,4",
        '--json-model-override-args {"a": [1, 2]}',
        "--served-model-name it's=mine",
    ],
)
def test_free_text_reaches_hydra_to_the_letter(value: str):
    (override,) = parse([f"server.args={value}"], TEXT).overrides
    assert OverridesParser.create().parse_override(override).value() == value


@pytest.mark.parametrize("value", ["null", "'--tp 8'", '"--tp 8"', ""])
def test_what_is_quoted_or_nothing_stays(value: str):
    assert parse([f"server.args={value}"], TEXT).overrides == [f"server.args={value}"]


def test_other_overrides_stay_sweeps_and_lists():
    given = ["parallel=tp8,pp4", "autotune.ops=[fp8_gemm,bf16_gemm]"]
    assert parse(given, TEXT).overrides == given


def test_flags_may_stand_anywhere():
    line = parse(["model=deepseek", "--cfg", "job", "-m", "parallel=tp8,pp4"])
    assert line.arguments() == ["-m", "--cfg", "job", "model=deepseek", "parallel=tp8,pp4"]
    assert line.is_multirun


def test_a_recipe_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"recipe: no such file: .*lost.yaml"):
        parse([f"recipe={tmp_path / 'lost.yaml'}"])
