from pathlib import Path

import pytest

from pipeline.deepgemm.memo import package_folder
from pipeline.deepgemm.nvcc_limit import oldest_nvcc, require_nvcc_of_library
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.errors import HostError


def toolkit(release: str) -> Toolkit:
    return Toolkit(Path("nvcc"), Path(), f"release {release}, V{release}.93\nBuild x", "a test")


def library(folder: Path, content: bytes) -> Path:
    """A package deep_gemm under `folder` whose library holds these bytes."""
    package = folder / "deep_gemm"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_C.so").write_bytes(content)
    return package


@pytest.mark.parametrize(
    ("message", "oldest"),
    [
        (b"\0\0NVCC version must be at least 12.9\0", (12, 9)),
        (b"\0NVCC version should be >= 12.3\0", (12, 3)),
        (b"no limit", None),
    ],
)
def test_a_library_says_itself_which_nvcc_it_takes(tmp_path: Path, message: bytes, oldest: tuple[int, int] | None):
    assert oldest_nvcc(library(tmp_path, message)) == oldest


def test_the_installed_library_takes_no_nvcc_older_than_12_9():
    assert oldest_nvcc(package_folder()) == (12, 9)
    require_nvcc_of_library(toolkit("12.9"), None)
    with pytest.raises(HostError, match=r"^sgl-deep-gemm 0\.2\.3\S* needs nvcc 12\.9 or newer, got nvcc 12\.8 [^\n]*$"):
        require_nvcc_of_library(toolkit("12.8"), None)


def test_a_library_of_another_folder_is_named_by_it(tmp_path: Path):
    library(tmp_path, b"NVCC version must be at least 13.0")
    with pytest.raises(HostError, match=rf"the deep_gemm of toolkit\.deep_gemm={tmp_path} needs nvcc 13\.0 or newer"):
        require_nvcc_of_library(toolkit("12.9"), str(tmp_path))
