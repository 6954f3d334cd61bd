from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.deepgemm.compiler import Source
from pipeline.deepgemm.farm import MAX_GROUP, Compiled, Farm, default_workers, group_sources
from pipeline.deepgemm.store import Store
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from tests.deepgemm.test_translation_unit import source
from tests.fake_toolkit import FakeToolkit, make_toolkit

ARGUMENTS = ("/x/kernel.cu", "--cubin", "--output-file", "/x/kernel.cubin", "--gpu-architecture=sm_90a")


def farm(tmp_path: Path, toolkit: FakeToolkit, *, workers: int = 2) -> Farm:
    return Farm(find_toolkit(str(toolkit.home)), Store(tmp_path / "store"), Children(), workers, 90)


def sources(number: int) -> list[Source]:
    return [Source(f"gemm.{index}", f"kernel number {index};", ARGUMENTS) for index in range(number)]


def test_each_source_is_compiled_once_and_then_found_in_the_store(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda")
    counts: list[int] = []
    compiled = farm(tmp_path, toolkit).compile(sources(5), lambda state: counts.append(len(state.cubins)))
    assert (compiled.num_compiled, compiled.num_reused, compiled.failed) == (5, 0, {})
    assert compiled.cpu_s > 0
    assert counts[-1] == 5
    again = farm(tmp_path, toolkit).compile(sources(5), lambda state: None)
    assert (again.num_compiled, again.num_reused) == (0, 5)
    assert len(toolkit.compiled) == 5


def test_two_keys_with_one_content_are_one_compile(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda")
    twins = [Source("gemm.a", "same;", ARGUMENTS), Source("gemm.b", "same;", ("/y/kernel.cu", *ARGUMENTS[1:]))]
    compiled = farm(tmp_path, toolkit).compile(twins, lambda state: None)
    assert len(toolkit.compiled) == 1
    assert set(compiled.cubins) == {"gemm.a", "gemm.b"}


def test_a_rejected_kernel_brings_the_compilers_own_words(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda", reject="number 1;")
    compiled = farm(tmp_path, toolkit).compile(sources(4), lambda state: None)
    assert set(compiled.failed) == {"gemm.1"}
    assert "nvcc exit 2: kernel.cu(7): error: rejected" in compiled.failed["gemm.1"]
    assert len(compiled.cubins) == 3


def test_a_compiler_that_succeeds_with_the_wrong_architecture_is_not_believed(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda")
    wrong = [Source("gemm.0", "code;", (*ARGUMENTS[:4], "--gpu-architecture=sm_80"))]
    compiled = farm(tmp_path, toolkit).compile(wrong, lambda state: None)
    assert "is for sm_80, the target is sm_90" in compiled.failed["gemm.0"]
    assert not list((tmp_path / "store").rglob("*.cubin"))


def test_nothing_to_compile_is_no_work(tmp_path: Path):
    compiled = farm(tmp_path, make_toolkit(tmp_path / "cuda")).compile([], lambda state: None)
    assert compiled == Compiled(wall_s=compiled.wall_s)


def real_sources(number: int, header: str = "gemm.cuh") -> list[Source]:
    return [Source(f"gemm.{index}", source(index, header), ARGUMENTS) for index in range(number)]


@pytest.mark.parametrize(
    ("number", "workers", "sizes"), [(50, 2, {6, 7}), (58, 16, {3, 4}), (3, 16, {1}), (16, 2, {8})]
)
def test_groups_are_even_small_enough_and_fill_whole_waves(number: int, workers: int, sizes: set[int]):
    groups = group_sources(real_sources(number), workers)
    assert {len(group) for group in groups} == sizes
    assert max(sizes) <= MAX_GROUP
    assert sorted(one.key for group in groups for one in group) == sorted(one.key for one in real_sources(number))


def test_headers_and_options_that_differ_do_not_share_a_compiler_call():
    other = [Source("other", source(1), (*ARGUMENTS, "-g"))]
    groups = group_sources([*real_sources(4), *real_sources(4, "layout.cuh"), *other], 1)
    assert sorted(len(group) for group in groups) == [1, 4, 4]


def test_a_source_that_is_not_written_as_usual_is_compiled_by_itself():
    assert [len(group) for group in group_sources(sources(3), 1)] == [1, 1, 1]


def test_what_the_store_has_does_not_thin_out_the_groups(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda")
    farm(tmp_path, toolkit).compile(sources(4), lambda state: None)
    compiled = farm(tmp_path, toolkit).compile(sources(5), lambda state: None)
    assert (compiled.num_compiled, compiled.num_reused) == (1, 4)


def test_there_is_always_a_worker():
    assert default_workers() >= 1
