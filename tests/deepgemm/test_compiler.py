from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile

from pipeline.deepgemm.compiler import Nvcc, Source
from pipeline.deepgemm.cubin import read_cubin
from pipeline.deepgemm.memo import package_folder
from pipeline.deepgemm.toolkit import Toolkit, find_toolkit
from pipeline.engine.children import Children
from tests.deepgemm.test_translation_unit import one_line
from tests.fake_toolkit import make_toolkit

ARGUMENTS = ("/x/kernel.cu", "--cubin", "--output-file", "/x/kernel.cubin", "--gpu-architecture=sm_90a", "-O3")
TRANSPOSE = """
#include <deep_gemm/impls/smxx_layout.cuh>

using namespace deep_gemm;

static void __instantiate_kernel() {{
    auto ptr = reinterpret_cast<void*>(&transpose_fp32<
        512, 64, {size}, 128
    >);
}};
"""


def nvcc(tmp_path: Path, toolkit: Toolkit) -> Nvcc:
    shutil.rmtree(tmp_path / "work", ignore_errors=True)
    (tmp_path / "work").mkdir()
    return Nvcc(toolkit, Children(), tmp_path / "work", 90)


def build(tmp_path: Path, toolkit: Toolkit, sources: list[Source]) -> list[Path | str]:
    outcomes = {source.key: outcome for source, outcome in nvcc(tmp_path, toolkit).build(sources)}
    return [outcomes[source.key] for source in sources]


def gemm(number: int) -> Source:
    return Source(f"gemm.{number}", one_line(number), ARGUMENTS)


def test_options_are_what_remains_without_places_and_kinds():
    assert gemm(1).options == ("--gpu-architecture=sm_90a", "-O3")


def test_kernels_compiled_together_come_back_one_cubin_each(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda")
    built = build(tmp_path, find_toolkit(str(toolkit.home)), [gemm(4), gemm(2), gemm(9)])
    assert [read_cubin(path).kernels for path in built if isinstance(path, Path)] == [
        ("gemm_4",),
        ("gemm_2",),
        ("gemm_9",),
    ]


def test_one_bad_kernel_of_a_group_costs_the_others_nothing(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda", reject="gemm<2>")
    built = build(tmp_path, find_toolkit(str(toolkit.home)), [gemm(4), gemm(2)])
    assert isinstance(built[0], Path)
    assert built[1] == "nvcc exit 2: kernel.cu(7): error: rejected by the fake nvcc"


def test_a_group_of_another_architecture_is_not_believed(tmp_path: Path):
    toolkit = make_toolkit(tmp_path / "cuda")
    wrong = [Source(f"gemm.{n}", one_line(n), (*ARGUMENTS[:4], "--gpu-architecture=sm_80")) for n in (1, 2)]
    built = build(tmp_path, find_toolkit(str(toolkit.home)), wrong)
    assert all("is for sm_80, the target is sm_90" in str(outcome) for outcome in built)


@pytest.mark.parametrize("size", [4, 56])
def test_the_real_compiler_makes_the_same_machine_code_together_as_alone(tmp_path: Path, size: int):
    options = ("--gpu-architecture=sm_90a", "-O3", "-std=c++20", "--expt-relaxed-constexpr")
    include = ("--include-path", str(package_folder() / "include"))
    arguments = ("/x/kernel.cu", "--cubin", "--output-file", "/x/kernel.cubin", *options, *include)
    sources = [Source(str(n), TRANSPOSE.format(size=n), arguments) for n in (size, 12)]
    together, _ = build(tmp_path, find_toolkit(), sources)
    assert isinstance(together, Path)
    machine_code = _code(together)
    (alone,) = build(tmp_path, find_toolkit(), sources[:1])
    assert isinstance(alone, Path)
    assert machine_code == _code(alone)


def _code(cubin: Path) -> dict[str, bytes]:
    """What the GPU reads: code, constants and kernel information, by section."""
    with cubin.open("rb") as file:
        sections = {section.name: section.data() for section in ELFFile(file).iter_sections()}
    return {name: data for name, data in sections.items() if name.startswith((".text", ".nv."))}
