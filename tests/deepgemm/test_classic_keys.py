"""Keys of the classic JIT: golden ones that sgl-deep-gemm 0.1.2 itself gave, installed under /opt/venv/lib."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.deepgemm.classic_keys import (
    CompilerRecord,
    compiler_of,
    hex_digest,
    include_folder,
    is_classic,
    relocate,
)
from pipeline.engine.errors import StageError

INCLUDE = Path("/opt/venv/lib/deep_gemm/include")
ARGUMENTS = (
    "/scratch/kernel.cu",
    "-cubin",
    "-o",
    "/scratch/kernel.cubin",
    "-std=c++20",
    "--diag-suppress=39,161,174,177,186,940",
    "--ptxas-options=--register-usage-level=10",
    f"-I{INCLUDE}",
    "--gpu-architecture=sm_90a",
    "--compiler-options=-fPIC,-O3,-fconcepts,-Wno-deprecated-declarations,-Wno-abi",
    "-O3",
    "--expt-relaxed-constexpr",
    "--expt-extended-lambda",
)
LAYOUT_KERNEL = (
    "// Includes' hash value: 4e050c7ad50d240ab7d5a047be805262\n\n#include <deep_gemm/impls/smxx_layout.cuh>\n\n"
    "using namespace deep_gemm;\n\nstatic void __instantiate_kernel() {\n    auto ptr = reinterpret_cast<void*>("
    "&transpose_fp32<\n        512, 64, 4\n    >);\n};\n"
)
GEMM_KERNEL = (
    "// Includes' hash value: 1d3fe5c806f820898ddd4baec440d3fb\n\n#include <deep_gemm/impls/sm90_fp8_gemm_1d2d.cuh>\n\n"
    "using namespace deep_gemm;\n\nstatic void __instantiate_kernel() {\n    auto ptr = reinterpret_cast<void*>("
    "&sm90_fp8_gemm_1d2d_impl<\n        cute::UMMA::Major::K,\n        0, 0, 0,\n        1,\n        16, 16, 128,\n"
    "        128, 128, 32,\n        16,\n        128, 128,\n        1, false,\n        132, GemmType::Normal,\n"
    "        epilogue::transform::EpilogueIdentity\n    >);\n};\n"
)
GOLDEN = {
    "kernel.transpose_fp32.e9d326c85aba936c10619dacb5141945": ("transpose_fp32", LAYOUT_KERNEL),
    "kernel.sm90_fp8_gemm_1d2d.ea6d4cca18408b2c8c42023ea4fbfe96": ("sm90_fp8_gemm_1d2d", GEMM_KERNEL),
}
COMPILER = compiler_of(ARGUMENTS, (13, 0))


def cache_of(folder: Path, compiler: CompilerRecord = COMPILER) -> Path:
    """A published classic cache with both kernels."""
    for name, code in GOLDEN.values():
        entry = folder / "cache" / compiler.key(name, code)
        entry.mkdir(parents=True)
        (entry / "kernel.cu").write_text(code)
        (entry / "kernel.cubin").write_bytes(name.encode())
    return folder


def keys_in(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "cache").iterdir())


@pytest.mark.parametrize("key", GOLDEN)
def test_the_key_is_the_one_that_the_library_gave(key: str):
    assert COMPILER.key(*GOLDEN[key]) == key
    assert is_classic(key)


def test_a_key_of_the_newer_jit_is_not_classic():
    assert not is_classic("sm90_fp8_gemm_1d2d.b72d4c088b78b23036c0f8dbee597559")


def test_a_digest_is_32_hex_digits_and_differs_with_one_byte():
    assert len(hex_digest("")) == 32
    assert hex_digest("a") != hex_digest("b")


def test_a_cache_moves_to_another_folder_and_back(tmp_path: Path):
    warm = cache_of(tmp_path)
    before = keys_in(warm)
    moved = relocate(warm, COMPILER, Path("/srv/deep_gemm/include"))
    assert sorted(moved) == before
    assert keys_in(warm) == sorted(moved.values())
    assert not set(before) & set(moved.values())
    assert [path.name for path in warm.iterdir()] == ["cache"]
    relocate(warm, COMPILER.with_include(Path("/srv/deep_gemm/include")), INCLUDE)
    assert keys_in(warm) == before


def test_moving_twice_to_one_place_is_moving_once(tmp_path: Path):
    warm = cache_of(tmp_path)
    include = Path("/srv/deep_gemm/include")
    relocate(warm, COMPILER, include)
    once = keys_in(warm)
    cache_of(tmp_path)  # a later bake publishes the keys of this machine again
    relocate(warm, COMPILER, include)
    assert keys_in(warm) == once


def test_a_key_that_its_source_does_not_give_is_refused_and_nothing_is_touched(tmp_path: Path):
    warm = cache_of(tmp_path)
    victim = warm / "cache" / keys_in(warm)[0] / "kernel.cu"
    victim.write_text(victim.read_text() + "// edited\n")
    before = keys_in(warm)
    with pytest.raises(StageError, match="is not the key that its own source gives"):
        relocate(warm, COMPILER, Path("/srv/deep_gemm/include"))
    assert keys_in(warm) == before


def test_the_package_or_its_include_folder_may_be_named():
    assert include_folder(Path("/x/deep_gemm")) == include_folder(Path("/x/deep_gemm/include"))
