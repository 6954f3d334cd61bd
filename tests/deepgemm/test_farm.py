from __future__ import annotations

from pathlib import Path

from pipeline.deepgemm.farm import Compiled, Farm, Source, default_workers, group_sources, relocated
from pipeline.deepgemm.store import Store
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from tests.fake_toolkit import FakeToolkit, make_toolkit

ARGUMENTS = ("/x/kernel.cu", "--cubin", "--output-file", "/x/kernel.cubin", "--gpu-architecture=sm_90a")


def farm(tmp_path: Path, toolkit: FakeToolkit, *, workers: int = 2) -> Farm:
    return Farm(find_toolkit(str(toolkit.home)), Store(tmp_path / "store"), Children(), workers, 90)


def sources(number: int) -> list[Source]:
    return [Source(f"gemm.{index}", f"kernel number {index};", ARGUMENTS) for index in range(number)]


def test_each_source_is_compiled_once_and_then_found_in_the_store(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda")
    counts: list[int] = []
    done = farm(tmp_path, toolkit).compile(sources(5), lambda state: counts.append(len(state.cubins)))
    assert (done.num_compiled, done.num_reused, done.failed) == (5, 0, {})
    assert done.cpu_s > 0
    assert counts[-1] == 5
    again = farm(tmp_path, toolkit).compile(sources(5), lambda state: None)
    assert (again.num_compiled, again.num_reused) == (0, 5)
    assert len(toolkit.compiled) == 5


def test_two_keys_with_one_content_are_one_compile(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda")
    twins = [Source("gemm.a", "same;", ARGUMENTS), Source("gemm.b", "same;", ("/y/kernel.cu", *ARGUMENTS[1:]))]
    done = farm(tmp_path, toolkit).compile(twins, lambda state: None)
    assert len(toolkit.compiled) == 1
    assert set(done.cubins) == {"gemm.a", "gemm.b"}


def test_a_rejected_kernel_brings_the_compilers_own_words(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda", reject="number 1;")
    done = farm(tmp_path, toolkit).compile(sources(4), lambda state: None)
    assert set(done.failed) == {"gemm.1"}
    assert "nvcc exit 2: kernel.cu(7): error: rejected" in done.failed["gemm.1"]
    assert len(done.cubins) == 3


def test_a_compiler_that_succeeds_with_the_wrong_architecture_is_not_believed(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda")
    wrong = [Source("gemm.0", "code;", (*ARGUMENTS[:4], "--gpu-architecture=sm_80"))]
    done = farm(tmp_path, toolkit).compile(wrong, lambda state: None)
    assert "is for sm_80, the target is sm_90" in done.failed["gemm.0"]
    assert not list((tmp_path / "store").rglob("*.cubin"))


def test_nothing_to_compile_is_no_work(tmp_path: Path):
    done = farm(tmp_path, make_toolkit(tmp_path / "cuda")).compile([], lambda state: None)
    assert done == Compiled(wall_s=done.wall_s)


def test_arguments_move_with_their_folder(tmp_path: Path):
    moved = relocated(ARGUMENTS, tmp_path)
    assert moved[0] == str(tmp_path / "kernel.cu")
    assert moved[3] == str(tmp_path / "kernel.cubin")
    assert moved[4] == ARGUMENTS[4]


def test_groups_hold_every_source_once():
    assert [source for group in group_sources(sources(3)) for source in group] == sources(3)


def test_there_is_always_a_worker():
    assert default_workers() >= 1
