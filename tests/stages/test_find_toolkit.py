from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.deepgemm.memo import package_folder
from pipeline.engine.errors import HostError
from pipeline.recipe import ToolkitChoice
from pipeline.slots import DISCOVERER, TOOLKIT, VIRTUAL_GPU
from stages.find_toolkit import FindToolkit
from tests.fake_toolkit import make_toolkit
from tests.servers.recipes import target
from tests.stages.runs import Bench, completed, recipe_of


def bench_of(folder: Path, *, deep_gemm: Path | None = None, release: str = "13.0", gpu: str = "h200") -> Bench:
    """A bench whose recipe names a fake toolkit of this release, and perhaps a deep_gemm."""
    home = make_toolkit(folder / "cuda", release=release).home
    choice = ToolkitChoice(cuda_home=str(home), deep_gemm=None if deep_gemm is None else str(deep_gemm))
    return Bench(replace(recipe_of(), toolkit=choice, target=target(gpu)), folder=folder)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A bench in which the stage ran."""
    this = bench_of(tmp_path_factory.mktemp("toolkit"))
    result = completed(this.run(FindToolkit()))
    assert result.summary.startswith("nvcc 13.0 (Build cuda_13.0.fake) from toolkit.cuda_home; virtual NVIDIA H200")
    return this


def test_later_stages_get_the_toolkit_that_the_recipe_names(bench: Bench) -> None:
    toolkit = bench.context.read(TOOLKIT)
    assert bench.folder is not None
    assert (toolkit.source, toolkit.nvcc) == ("toolkit.cuda_home", bench.folder / "cuda" / "bin" / "nvcc")


def test_the_virtual_gpu_is_the_target_s_and_lies_in_the_store(bench: Bench) -> None:
    gpu = bench.context.read(VIRTUAL_GPU)
    assert gpu.target == bench.recipe.target
    assert gpu.folder.parent == bench.places.virtual_gpus
    assert (gpu.folder / "libcuda.so.1").is_file()


def test_the_discoverer_uses_both_and_the_installed_deep_gemm(bench: Bench) -> None:
    discoverer = bench.context.read(DISCOVERER)
    assert discoverer.gpu == bench.context.read(VIRTUAL_GPU)
    assert discoverer.toolkit == bench.context.read(TOOLKIT)
    assert discoverer.scratch_dir == bench.places.scratch
    assert discoverer.deep_gemm is None


def test_a_second_run_builds_no_second_virtual_gpu(bench: Bench) -> None:
    again = Bench(bench.recipe, folder=bench.folder)
    again.run(FindToolkit())
    assert again.context.read(VIRTUAL_GPU) == bench.context.read(VIRTUAL_GPU)
    assert len(list(bench.places.virtual_gpus.glob("virtual_gpu-*"))) == 1


def test_a_deep_gemm_of_another_folder_is_handed_on_by_its_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "deep_gemm").symlink_to(package_folder())
    monkeypatch.chdir(tmp_path)
    bench = bench_of(tmp_path, deep_gemm=Path("mine"))
    bench.run(FindToolkit())
    assert bench.context.read(DISCOVERER).deep_gemm == str(tmp_path / "mine")


def test_a_folder_without_deep_gemm_is_named(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=f"toolkit.deep_gemm={tmp_path} holds no package deep_gemm"):
        bench_of(tmp_path, deep_gemm=tmp_path).run(FindToolkit())


def test_a_folder_without_a_compiler_is_named(tmp_path: Path) -> None:
    recipe = replace(recipe_of(), toolkit=ToolkitChoice(cuda_home=str(tmp_path)))
    with pytest.raises(HostError, match="toolkit.cuda_home names no compiler"):
        Bench(recipe, folder=tmp_path).run(FindToolkit())


def test_a_compiler_too_old_for_the_target_is_refused_before_anything_is_built(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, release="12.8", gpu="b200")
    with pytest.raises(HostError, match=r"needs nvcc 12\.9 or newer"):
        bench.run(FindToolkit())
    assert not bench.places.store.exists()


def test_a_compiler_too_old_for_the_installed_deep_gemm_is_refused_in_one_line(tmp_path: Path) -> None:
    """nvcc 12.8 compiles for sm_90, and sgl-deep-gemm 0.2.3 does not take it."""
    bench = bench_of(tmp_path, release="12.8")
    with pytest.raises(HostError, match=r"^sgl-deep-gemm \S+ needs nvcc 12\.9 or newer, got nvcc 12\.8 [^\n]*$"):
        bench.run(FindToolkit())
    assert not bench.places.store.exists()


def test_a_store_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(HostError, match=r"^store\.dir: cannot make "):
        bench_of(tmp_path).run(FindToolkit())
