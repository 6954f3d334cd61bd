from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.engine.errors import ConfigError, HostError
from pipeline.recipe import DiscoverySource, Recipe
from pipeline.slots import CHILDREN, INQUIRY, TOOLKIT, VIRTUAL_GPU
from pipeline.virtual_gpu.build import VirtualGpu
from stages.find_server import FindServer
from tests.servers.recipes import target
from tests.servers.shared.places import Place
from tests.stages.runs import Bench, completed, recipe_of, skipped

ASKING = [source for source in DiscoverySource if source.asks_server]


def asking(source: DiscoverySource, **flags: Any) -> Recipe:
    """The small recipe with another discovery."""
    return replace(recipe_of(**flags), discovery=source)


def bench_of(recipe: Recipe, folder: Path, *, whole_server: bool = True) -> Bench:
    """A bench after find_toolkit: a fake toolkit, and the folder of a virtual GPU that is never loaded."""
    gpu = VirtualGpu(folder / "gpu", target())
    gpu.folder.mkdir()
    if whole_server:
        (gpu.folder / "libvnccl.so").touch()
    return Bench(recipe, folder=folder, seeds={TOOLKIT: Place(folder).toolkit, VIRTUAL_GPU: gpu})


def python_with(folder: Path, **versions: str | None) -> str:
    """A Python that has these versions of distributions."""
    python = folder / "python"
    answer = json.dumps({"versions": versions, "site": "/site"})
    python.write_text(f"#!/bin/sh\necho '{answer}'\n")
    python.chmod(0o755)
    return str(python)


def test_rules_alone_need_no_server(tmp_path: Path) -> None:
    bench = bench_of(asking(DiscoverySource.rules), tmp_path)
    result = skipped(bench.run(FindServer()))
    assert "discovery=rules derives the list" in result.reason
    assert bench.context.writer(INQUIRY) is None


@pytest.mark.parametrize("source", ASKING, ids=lambda source: source.name)
def test_a_server_that_cannot_be_started_is_named_before_the_run(source: DiscoverySource) -> None:
    recipe = asking(source, name="vllm")
    line = f"discovery={source.value} can start sglang, not vllm; use discovery=rules"
    assert FindServer().config_errors(recipe) == [line]


def test_a_server_that_only_has_rules_is_good_for_discovery_by_rules() -> None:
    assert FindServer().config_errors(asking(DiscoverySource.rules, name="vllm")) == []


@pytest.mark.parametrize("source", DiscoverySource, ids=lambda source: source.name)
def test_a_server_that_can_be_started_is_good_for_every_discovery(source: DiscoverySource) -> None:
    assert FindServer().config_errors(asking(source)) == []


def test_a_server_that_cannot_be_started_is_named_in_a_run_that_nobody_validated(tmp_path: Path) -> None:
    recipe = asking(DiscoverySource.both, name="vllm", version="0.33.0")
    with pytest.raises(ConfigError, match="discovery=both can start sglang, not vllm"):
        bench_of(recipe, tmp_path).run(FindServer())


def test_a_virtual_gpu_for_deepgemm_alone_holds_no_whole_server(tmp_path: Path) -> None:
    bench = bench_of(asking(DiscoverySource.server), tmp_path, whole_server=False)
    with pytest.raises(HostError, match=r"needs nccl\.h and the headers of cuBLAS .*requirements\.txt"):
        bench.run(FindServer())


def test_a_python_without_the_server_is_told_how_to_get_it(tmp_path: Path) -> None:
    recipe = asking(DiscoverySource.server, python=python_with(tmp_path, sglang=None))
    with pytest.raises(HostError, match=r"has no sglang; .*requirements-sglang.txt"):
        bench_of(recipe, tmp_path).run(FindServer())


def test_the_inquiry_holds_everything_that_a_start_needs(tmp_path: Path) -> None:
    python = python_with(tmp_path, sglang="0.5.23")
    recipe = asking(DiscoverySource.server, python=python, start_limit_s=77, fast_warmup=True, args="--log-level info")
    bench = bench_of(recipe, tmp_path)
    result = completed(bench.run(FindServer()))
    assert result.summary == f"sglang 0.5.23 in {python}"
    inquiry = bench.context.read(INQUIRY)
    starter = inquiry.starter
    assert starter.limit_s == 77
    assert starter.deep_gemm_variable == "SGLANG_DG_CACHE_DIR"
    assert starter.cache_dir == bench.places.output / "sglang"
    assert (starter.gpu, starter.toolkit) == (bench.context.read(VIRTUAL_GPU), bench.context.read(TOOLKIT))
    assert starter.children is bench.context.read(CHILDREN)
    assert inquiry.variables == {"SGLANG_JIT_DEEPGEMM_FAST_WARMUP": "1"}
    assert list(inquiry.variants) == ["as configured", "without graphs"]
    assert all(list(words)[:2] == ["--model-path", str(inquiry.checkpoint)] for words in inquiry.variants.values())
    assert all("--log-level" in words for words in inquiry.variants.values())
    assert inquiry.scratch_dir == bench.places.scratch


def test_the_checkpoint_is_a_folder_of_the_store_with_the_model_s_config(tmp_path: Path) -> None:
    recipe = asking(DiscoverySource.server, python=python_with(tmp_path, sglang="0.5.23"))
    bench = bench_of(recipe, tmp_path)
    bench.run(FindServer())
    checkpoint = bench.context.read(INQUIRY).checkpoint
    assert checkpoint.parent == bench.places.checkpoints
    assert json.loads((checkpoint / "config.json").read_text()) == dict(recipe.model.config)
