from __future__ import annotations

import pytest

from pipeline.engine.errors import ConfigError, HostError
from pipeline.engine.stage import Skipped
from pipeline.recipe import DiscoverySource, Recipe
from pipeline.slots import ASKED
from stages.ask import Ask, difference_table
from stages.plan import Plan
from tests.stages.runs import Bench, recipe_of


def asking(source: DiscoverySource, **flags: str) -> Recipe:
    recipe = recipe_of(**flags)
    recipe.discovery = source
    return recipe


def test_rules_alone_start_no_server():
    bench = Bench(asking(DiscoverySource.rules))
    result = bench.run(Plan(), Ask())
    assert isinstance(result, Skipped)
    assert "discovery=rules" in result.reason
    assert not bench.context.holds(ASKED)


def test_a_server_that_cannot_be_started_is_named():
    with pytest.raises(ConfigError, match="discovery=both can start sglang, not vllm"):
        Bench(asking(DiscoverySource.both, name="vllm", version="0.33.0")).run(Plan(), Ask())


def test_a_python_without_the_server_is_told_how_to_get_it(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"versions": {"sglang": null}, "site": "/site"}\'\n')
    python.chmod(0o755)
    with pytest.raises(HostError, match="has no sglang; .*requirements-sglang.txt"):
        Bench(asking(DiscoverySource.server, python=str(python))).run(Plan(), Ask())


def test_a_limit_that_leaves_no_time_is_refused():
    assert Ask(limit_s=0).problems() == ["ask.limit_s must be at least 1, got 0"]
    assert Ask().problems() == []


def test_what_only_one_of_the_two_names_is_a_table_with_its_source():
    figures = {"rules_only": [{"problem": "GEMM 1x2", "where": "kv_b_proj: a rule"}], "server_only": []}
    table = difference_table(figures)
    assert table is not None
    shown = table.render()
    assert all(part in shown for part in ("GEMM 1x2", "rules", "kv_b_proj: a rule"))
    assert difference_table({"rules_only": [], "server_only": []}) is None
    assert difference_table({}) is None
