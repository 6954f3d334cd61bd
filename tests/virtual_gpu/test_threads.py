"""Many threads at once: many_threads.c does each thing, and says how many answers were wrong."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pipeline.virtual_gpu.build import VirtualGpu
from pipeline.virtual_gpu.headers import find_headers
from tests.virtual_gpu.conftest import on_gpu

SOURCE = Path(__file__).with_name("many_threads.c")


@pytest.fixture(scope="module")
def many_threads(gpu: VirtualGpu, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("program") / "many_threads"
    flags = ["-std=gnu11", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]
    libraries = [str(gpu.folder / name) for name in ("libcuda.so.1", "libvcudart.so")]
    command = ["gcc", *flags, f"-I{find_headers()}", "-o", str(program), str(SOURCE), *libraries]
    subprocess.run(command, check=True)
    return program


def in_many_threads(gpu: VirtualGpu, program: Path, what: str) -> str:
    environment = {**os.environ, **gpu.environment(), "VGPU_NUM_DEVICES": "8"}
    done = subprocess.run([program, what, SOURCE], env=environment, capture_output=True, text=True, timeout=60)
    return f"{done.stdout}{done.stderr}ended with {done.returncode}"


@pytest.mark.parametrize("what", ["loads", "launches", "allocations", "streams", "captures"])
def test_what_all_threads_share_adds_up(gpu: VirtualGpu, many_threads: Path, what: str) -> None:
    assert in_many_threads(gpu, many_threads, what) == f"{what}: 0 wrong\nended with 0"


@pytest.mark.parametrize("what", ["devices", "capture_modes", "error_names"])
def test_what_cuda_keeps_for_each_thread_no_other_thread_changes(
    gpu: VirtualGpu, many_threads: Path, what: str
) -> None:
    assert in_many_threads(gpu, many_threads, what) == f"{what}: 0 wrong\nended with 0"


def test_a_context_names_its_device_and_only_a_device_that_is_there_becomes_current(gpu: VirtualGpu) -> None:
    code = (
        "import ctypes\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "context = ctypes.c_void_p()\n"
        "device = ctypes.c_int()\n"
        "for ordinal in (0, 5):\n"
        "    driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal)\n"
        "    driver.cuCtxGetDevice_v2(ctypes.byref(device), context)\n"
        "    print(device.value, driver.cuCtxSetCurrent(context))\n"
    )
    # CUDA_ERROR_INVALID_DEVICE: there is one device, so the sixth cannot be made current.
    assert on_gpu(gpu, code).stdout.split() == ["0", "0", "5", "101"]


def test_a_fork_loads_and_launches_as_its_parent_does(gpu: VirtualGpu) -> None:
    code = (
        "import ctypes, os\n"
        "driver = ctypes.CDLL('libcuda.so.1')\n"
        "ids = (ctypes.c_int * 8)()\n"
        "def launches():\n"
        "    library = ctypes.c_void_p()\n"
        f"    driver.cuLibraryLoadFromFile(ctypes.byref(library), {bytes(SOURCE)!r}, None, None, 0, None, None, 0)\n"
        "    driver.cuLaunchKernelEx(None, library, None, None)\n"
        "    return driver.vgpu_take_launches(ids, 8)\n"
        "child = os.fork()\n"
        "counted = launches()\n"
        "if child == 0:\n"
        "    os._exit(counted)\n"
        "print(counted, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert on_gpu(gpu, code).stdout.split() == ["1", "1"]
