import subprocess
from pathlib import Path

import pytest

from pipeline.deepgemm.cubin import check_cubin
from pipeline.deepgemm.toolkit import Toolkit, find_toolkit
from pipeline.engine.errors import HostError
from pipeline.target import Target
from pipeline.virtual_gpu.headers import nvidia_folders
from tests.fake_toolkit import make_toolkit


def test_the_recipe_comes_before_cuda_home_before_path_before_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for name in ("recipe", "environment", "path"):
        make_toolkit(tmp_path / name)
    make_toolkit(tmp_path / "wheel" / "cu13")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "environment"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    wheel = [tmp_path / "wheel"]
    assert find_toolkit(str(tmp_path / "recipe"), wheel_roots=wheel).cuda_home == tmp_path / "recipe"
    assert find_toolkit(wheel_roots=wheel).source == "CUDA_HOME"
    monkeypatch.delenv("CUDA_HOME")
    assert find_toolkit(wheel_roots=wheel).cuda_home == tmp_path / "path"
    monkeypatch.setenv("PATH", "/nonexistent")
    assert find_toolkit(wheel_roots=wheel).source == "the nvidia-cuda-nvcc wheel"
    with pytest.raises(HostError, match=r"no nvcc: .* pip install -r requirements.txt"):
        find_toolkit(wheel_roots=[])


def test_a_wrapper_on_path_still_leads_to_the_toolkit_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    toolkit = make_toolkit(tmp_path / "cuda")
    wrapper = tmp_path / "bin" / "nvcc"
    wrapper.parent.mkdir()
    wrapper.write_text(f'#!/bin/sh\nexec "{toolkit.home}/bin/nvcc" "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:/bin")
    assert find_toolkit().cuda_home == toolkit.home


def test_a_cuda_home_without_a_compiler_is_an_error_and_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(HostError, match="CUDA_HOME names no compiler"):
        find_toolkit()


@pytest.mark.parametrize(
    ("release", "capability", "is_enough"),
    [
        ("12.8", "9.0", True),
        ("12.2", "9.0", False),
        ("12.8", "10.0", False),
        ("12.9", "10.0", True),
    ],
)
def test_each_target_has_an_oldest_nvcc(release: str, capability: str, is_enough: bool):
    toolkit = Toolkit(Path("nvcc"), Path(), f"release {release}, V{release}.1\nBuild x", "a test")
    target = Target(name="t", compute_capability=capability)
    if is_enough:
        toolkit.require(target)
    else:
        with pytest.raises(HostError, match=r"needs nvcc .* set toolkit.cuda_home"):
            toolkit.require(target)


def test_the_wheels_alone_compile_for_every_target(tmp_path: Path):
    """The fall-back of machines without a toolkit: requirements.txt pins wheels that fit together."""
    source = tmp_path / "kernel.cu"
    source.write_text("#include <cuda/std/cstdint>\n__global__ void kernel(int *x) { *x = 1; }\n")
    nvcc = next(root / "cu13" / "bin" / "nvcc" for root in nvidia_folders())
    for arch, targets in (("sm_90a", [90]), ("sm_100f", [100, 103]), ("sm_120f", [120, 121]), ("sm_120a", [120])):
        command = [str(nvcc), str(source), "--cubin", "-o", str(tmp_path / arch), f"--gpu-architecture={arch}"]
        compile_run = subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"})
        assert compile_run.returncode == 0, compile_run.stderr
        good_on = [sm for sm in (90, 100, 103, 120, 121) if check_cubin(tmp_path / arch, sm) is None]
        assert good_on == targets
