from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.deepgemm.cubin import check_cubin, read_cubin
from tests.fake_toolkit import cubin


@pytest.mark.parametrize(("sm", "abi"), [(90, 8), (100, 8), (120, 8), (90, 7)])
def test_the_architecture_is_read_from_either_elf_abi(tmp_path: Path, sm: int, abi: int):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin(sm, abi=abi))
    assert read_cubin(path).sm == sm
    assert check_cubin(path, sm) is None


@pytest.mark.parametrize(
    ("arch", "target", "is_good"),
    [
        ("sm_100f", 100, True),
        ("sm_100f", 103, True),
        ("sm_100f", 110, False),
        ("sm_100f", 120, False),
        ("sm_100a", 103, False),
        ("sm_100", 103, False),
        ("sm_103f", 100, False),
        ("sm_103f", 103, True),
        ("sm_120f", 120, True),
        ("sm_120f", 121, True),
        ("sm_120a", 121, False),
        ("sm_121f", 120, False),
        ("sm_90a", 90, True),
    ],
)
def test_family_code_is_good_for_its_family_and_other_code_for_its_own_architecture_only(
    tmp_path: Path, arch: str, target: int, is_good: bool
):
    """e_flags of sm_100, sm_100a and sm_100f are the same (nvcc 13.0): the note of ptxas tells them apart."""
    path = tmp_path / "kernel.cubin"
    sm = int(arch[3:].rstrip("af"))
    path.write_bytes(cubin(sm, variant=arch[-1] if arch[-1] in "af" else ""))
    named = arch.rstrip("a")
    assert check_cubin(path, target) == (None if is_good else f"{path}: is for {named}, the target is sm_{target}")


@pytest.mark.parametrize("number", [0, 2])
def test_a_cubin_must_hold_exactly_one_kernel(tmp_path: Path, number: int):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin(90, kernels=number))
    assert "DeepGEMM loads exactly one" in (check_cubin(path, 90) or "")


def test_another_architecture_is_named(tmp_path: Path):
    path = tmp_path / "kernel.cubin"
    path.write_bytes(cubin(100))
    assert "is for sm_100, the target is sm_90" in (check_cubin(path, 90) or "")


def test_a_stub_is_called_a_stub(tmp_path: Path):
    path = tmp_path / "kernel.cubin"
    path.write_text("PREHEAT-STUB\nkernel.cu\n")
    assert "is a stub" in (check_cubin(path, 90) or "")


def test_an_executable_of_this_machine_is_no_cubin(tmp_path: Path):
    assert "not for CUDA" in (check_cubin(Path("/bin/sh").resolve(), 90) or "")


def test_a_missing_file_is_a_fault_and_no_exception(tmp_path: Path):
    assert check_cubin(tmp_path / "absent", 90) is not None


@given(st.data())
def test_no_truncation_goes_unnoticed(data: st.DataObject):
    whole = cubin(90, variant="a")
    num_bytes = data.draw(st.integers(0, len(whole) - 1))
    path = Path(f"/tmp/preheat-test-truncated-{num_bytes}")
    try:
        path.write_bytes(whole[:num_bytes])
        assert check_cubin(path, 90) is not None, f"{num_bytes} of {len(whole)} bytes passed as a whole cubin"
    finally:
        path.unlink()
