"""The real deep_gemm on the virtual GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.deepgemm.cache import read_sources
from pipeline.deepgemm.cubin import STUB_MARKER
from pipeline.deepgemm.discovery import Discoverer, num_shards, split_evenly
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.errors import StageError
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.virtual_gpu.build import build
from tests.fake_toolkit import make_toolkit
from tests.servers.recipes import target

H200 = target("h200")


def problem(kernel: Kernel, n: int, k: int, groups: int, m: MList) -> Problem:
    return Problem(
        kernel=kernel, n=n, k=k, groups=groups, m=m, linears=("linear",), layers=(0,), ranks=(0,), rules=("rule",)
    )


@pytest.fixture
def discoverer(tmp_path: Path) -> Discoverer:
    toolkit = find_toolkit(str(make_toolkit(tmp_path / "cuda").home))
    return Discoverer(build(H200, cache_dir=tmp_path / "gpu"), toolkit, Children(), tmp_path / "scratch")


def test_every_m_of_the_list_is_launched_and_mapped_to_its_kernels(discoverer: Discoverer, tmp_path: Path):
    every_m = MList((range(1, 16385),))
    progress: list[tuple[int, int]] = []
    dense = problem(Kernel.DENSE, 2112, 7168, 1, every_m)
    discovery = discoverer.record([dense], tmp_path / "stubs", lambda done, total: progress.append((done, total)))
    (kernels,) = discovery.problems
    assert kernels.launched == discovery.num_launched == 16384
    assert [m for first, last, _ in kernels.runs for m in range(first, last + 1)] == list(every_m)
    assert sorted(kernels.keys) == sorted(path.name for path in (tmp_path / "stubs" / "cache").iterdir())
    # 24 GEMM kernels and the layout kernel of K = 7168; the server-style sweep on an H200 compiled 25 as well.
    assert len(kernels.keys) == 25
    assert progress
    assert discovery.peak_bytes < 2 << 30, "operands of gigabytes must stay address space"


def test_sources_and_arguments_come_back_from_the_stubs(discoverer: Discoverer, tmp_path: Path):
    masked = problem(Kernel.MASKED, 512, 512, 8, MList((range(1, 17),)))
    discoverer.record([masked], tmp_path / "stubs", lambda done, total: None)
    sources = read_sources(tmp_path / "stubs")
    gemm = next(source for source in sources if "masked" in source.key)
    assert "GemmType::MGroupedMasked" in gemm.text
    assert "--gpu-architecture=sm_90a" in gemm.arguments
    assert (tmp_path / "stubs" / "cache" / gemm.key / "kernel.cubin").read_bytes().startswith(STUB_MARKER)


def test_a_check_names_what_the_cache_lacks_and_writes_nothing_there(discoverer: Discoverer, tmp_path: Path):
    first = problem(Kernel.DENSE, 2112, 7168, 1, MList((range(1, 9),)))
    more = problem(Kernel.DENSE, 2112, 7168, 1, MList((range(1, 4097),)))
    discoverer.record([first], tmp_path / "stubs", lambda done, total: None)
    before = sorted(path.name for path in (tmp_path / "stubs" / "cache").iterdir())
    discovery, missing = discoverer.check([first], tmp_path / "stubs", lambda done, total: None)
    assert missing == ()
    assert discovery.num_launched == 8
    discovery, missing = discoverer.check([more], tmp_path / "stubs", lambda done, total: None)
    assert set(missing) == set(discovery.keys) - set(before)
    assert missing
    assert sorted(path.name for path in (tmp_path / "stubs" / "cache").iterdir()) == before


def test_an_m_that_the_library_does_not_take_is_an_error_and_not_left_out(discoverer: Discoverer, tmp_path: Path):
    odd = problem(Kernel.CONTIGUOUS, 512, 512, 8, MList((range(100, 101),)))
    with pytest.raises(StageError, match="the plan has M=100, deep_gemm takes multiples of 128"):
        discoverer.record([odd], tmp_path / "stubs", lambda done, total: None)


def test_working_folders_are_gone_afterwards(discoverer: Discoverer, tmp_path: Path):
    dense = problem(Kernel.DENSE, 512, 512, 1, MList((range(1, 3),)))
    discoverer.record([dense], tmp_path / "stubs", lambda done, total: None)
    assert not list((tmp_path / "scratch").iterdir())


def test_shards_hold_every_problem_once_and_about_the_same_number_of_m():
    sizes = [16384, 16384, 128, 16384, 16384, 128, 16384]
    problems = [problem(Kernel.DENSE, 512, 512, 1, MList((range(1, size + 1),))) for size in sizes]
    shards = split_evenly(problems, 3)
    assert sorted(index for shard in shards for index in shard) == list(range(len(sizes)))
    loads = [sum(sizes[index] for index in shard) for shard in shards]
    assert max(loads) - min(loads) <= 16384


@pytest.mark.parametrize(("numbers", "cores", "shards"), [([16], 8, 1), ([16384] * 6, 2, 2), ([16384] * 6, 16, 6)])
def test_workers_are_as_many_as_the_launches_and_the_cores_are_worth(numbers: list[int], cores: int, shards: int):
    problems = [problem(Kernel.DENSE, 512, 512, 1, MList((range(1, number + 1),))) for number in numbers]
    assert num_shards(problems, cores) == shards


def test_several_workers_find_what_one_finds(discoverer: Discoverer, tmp_path: Path):
    every_m = MList((range(1, 16385),))
    problems = [problem(Kernel.DENSE, n, 512, 1, every_m) for n in (512, 1024, 2112, 7168)]
    assert num_shards(problems, 2) == 2
    together = discoverer.record(problems, tmp_path / "together", lambda done, total: None)
    for index, one in enumerate(problems):
        alone = discoverer.record([one], tmp_path / "alone", lambda done, total: None)
        assert alone.problems[0] == together.problems[index]
