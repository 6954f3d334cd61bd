from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.engine.errors import HostError
from pipeline.virtual_gpu.build import VirtualGpu, build, unanswered_source
from pipeline.virtual_gpu.headers import CUBLAS, NCCL, find_headers, find_optional_headers
from tests.virtual_gpu.conftest import B200, on_gpu


def test_torch_sees_the_target(gpu: VirtualGpu) -> None:
    code = (
        "import torch; p = torch.cuda.get_device_properties(0); "
        "print(torch.cuda.device_count(), p.name, p.major, p.minor, p.multi_processor_count, p.total_memory)"
    )
    said = on_gpu(gpu, code)
    assert said.stdout.strip() == f"1 NVIDIA B200 10 0 148 {1 << 37}", said.stderr
    assert "is not answered" not in said.stderr


def test_memory_is_address_space_until_it_is_touched(gpu: VirtualGpu) -> None:
    code = (
        "import torch; x = torch.empty(100 << 30, dtype=torch.uint8, device='cuda'); "
        "print([l.split()[1] for l in open('/proc/self/status') if l.startswith('VmRSS')][0])"
    )
    said = on_gpu(gpu, code)
    assert int(said.stdout) < 2 << 20, "more than 2 GiB resident after an allocation of 100 GiB"


def test_memory_ends_where_the_target_s_ends(gpu: VirtualGpu) -> None:
    code = (
        "import torch\n"
        "try:\n    torch.empty(200 << 30, dtype=torch.uint8, device='cuda')\n"
        "except torch.OutOfMemoryError:\n    print('refused')\n"
    )
    assert on_gpu(gpu, code).stdout.strip() == "refused"


def test_a_small_value_written_is_the_value_read_back(gpu: VirtualGpu) -> None:
    code = "import torch; print(torch.tensor([1.5, -2.0], device='cuda').cpu().tolist())"
    assert on_gpu(gpu, code).stdout.strip() == "[1.5, -2.0]"


@pytest.mark.parametrize(
    ("library", "function"), [("libcudart.so.13", "cudaMallocArray"), ("libcuda.so.1", "cuArrayCreate_v2")]
)
def test_an_unanswered_call_fails_with_its_name(gpu: VirtualGpu, library: str, function: str) -> None:
    code = f"import ctypes; print(getattr(ctypes.CDLL(None), '{function}')())"
    if library == "libcuda.so.1":
        code = f"import ctypes; print(ctypes.CDLL('{library}').{function}())"
    said = on_gpu(gpu, code)
    assert said.stdout.strip() == "801"
    assert f"virtual GPU: {function} is not answered" in said.stderr


def test_every_declared_function_is_answered_or_named() -> None:
    header = "CUresult CUDAAPI cuFoo(int a);\n#define cuBar cuBar_v2\n"
    patterns = [re.compile(r"CUDAAPI\s+(cu\w+)\s*\("), re.compile(r"#define\s+\w+\s+(cu\w+_v\d)")]
    source = unanswered_source(header, patterns)
    assert "UNANSWERED(cuFoo, 801)" in source
    assert "UNANSWERED(cuBar_v2, 801)" in source


def test_it_is_built_once(gpu: VirtualGpu) -> None:
    before = (gpu.folder / "libcuda.so.1").stat().st_mtime_ns
    again = build(B200, cache_dir=gpu.folder.parent)
    assert again.folder == gpu.folder
    assert (gpu.folder / "libcuda.so.1").stat().st_mtime_ns == before


def test_the_headers_come_from_the_wheels_without_any_toolkit() -> None:
    assert find_headers(Path("/nonexistent")).name == "include"


def test_no_compiler_is_named_with_its_cure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(HostError, match="apt-get install gcc"):
        build(B200, cache_dir=tmp_path / "gpu")


def test_the_sources_compile_without_a_warning(tmp_path: Path) -> None:
    folders = [find_headers(), find_optional_headers(CUBLAS), find_optional_headers(NCCL)]
    flags = ["-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter", *(f"-I{folder}" for folder in folders)]
    sources = sorted((Path(__file__).parents[2] / "pipeline" / "virtual_gpu").glob("*.c"))
    assert len(sources) > 4
    for source in sources:
        command = ["gcc", "-std=gnu11", "-fsyntax-only", *flags, str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_products_of_every_kind_run_and_give_tensors_of_the_right_shape(gpu: VirtualGpu) -> None:
    code = (
        "import torch\n"
        "for dtype in (torch.bfloat16, torch.float32, torch.float16):\n"
        "    a, b = torch.empty(8, 16, device='cuda', dtype=dtype), torch.empty(16, 32, device='cuda', dtype=dtype)\n"
        "    c = torch.empty(32, device='cuda', dtype=dtype)\n"
        "    print(tuple((a @ b).shape), tuple(torch.bmm(a[None], b[None]).shape), tuple(torch.addmm(c, a, b).shape))\n"
        "    print(tuple(torch.nn.functional.linear(a, b.T, c).shape))\n"
    )
    said = on_gpu(gpu, code)
    assert said.stdout.split("\n")[:-1] == ["(8, 32) (1, 8, 32) (8, 32)", "(8, 32)"] * 3, said.stderr


def test_a_triton_kernel_is_compiled_for_the_target_and_launched(gpu: VirtualGpu, tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(
        "import torch, triton, triton.language as tl\n"
        "@triton.jit\n"
        "def add_one(x, out, N: tl.constexpr):\n"
        "    at = tl.arange(0, N)\n"
        "    tl.store(out + at, tl.load(x + at) + 1)\n"
        "x = torch.empty(64, device='cuda')\n"
        "kernel = add_one[(1,)](x, torch.empty_like(x), N=64)\n"
        "print(kernel.metadata.target.arch, len(kernel.asm['cubin']) > 0)\n"
    )
    environment = {**os.environ, **gpu.environment(), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    command = [sys.executable, str(tmp_path / "kernel.py")]
    said = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert said.stdout.split() == ["100", "True"], said.stderr


@pytest.mark.slow
def test_what_inductor_compiles_is_loaded_from_its_file_and_launched(gpu: VirtualGpu, tmp_path: Path) -> None:
    code = (
        "import torch\n"
        "twice = torch.compile(lambda x: x.unsqueeze(-1) * x.unsqueeze(-2))\n"
        "print(tuple(twice(torch.ones(64, 32, device='cuda')).shape))\n"
    )
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor"), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    environment = {**os.environ, **gpu.environment(), **caches}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert said.stdout.strip() == "(64, 32, 32)", said.stderr
    assert list(tmp_path.glob("**/*.cubin"))


def test_values_that_are_written_and_read_back_are_right(gpu: VirtualGpu) -> None:
    code = (
        "import torch\n"
        "x = torch.tensor([1.0, 2.0, 3.0], device='cuda')\n"
        "y = torch.zeros(3)\n"
        "y.copy_(x)\n"
        "x.copy_(torch.tensor([4.0, 5.0, 6.0]))\n"
        "print(y.tolist(), x.tolist(), x.clone().tolist())\n"
    )
    said = on_gpu(gpu, code)
    assert said.stdout.strip() == "[1.0, 2.0, 3.0] [4.0, 5.0, 6.0] [4.0, 5.0, 6.0]", said.stderr


def test_a_graph_is_captured_from_a_stream_and_from_one_that_waits_for_it(gpu: VirtualGpu) -> None:
    code = (
        "import torch\n"
        "x, graph, side = torch.ones(4, device='cuda'), torch.cuda.CUDAGraph(), torch.cuda.Stream()\n"
        "with torch.cuda.graph(graph):\n"
        "    captured = [torch.cuda.is_current_stream_capturing()]\n"
        "    side.wait_stream(torch.cuda.current_stream())\n"
        "    with torch.cuda.stream(side):\n"
        "        captured.append(torch.cuda.is_current_stream_capturing())\n"
        "        y = x + x\n"
        "    torch.cuda.current_stream().wait_stream(side)\n"
        "graph.replay()\n"
        "print(captured, torch.cuda.is_current_stream_capturing(), tuple(y.shape))\n"
    )
    said = on_gpu(gpu, code)
    assert said.stdout.strip() == "[True, True] False (4,)", said.stderr


def test_several_devices_are_as_many_as_asked_for(gpu: VirtualGpu) -> None:
    code = (
        "import torch; torch.cuda.set_device(3); x = torch.empty(8, device='cuda')\n"
        "print(torch.cuda.device_count(), torch.cuda.current_device(), x.device)\n"
        "print(torch.cuda.can_device_access_peer(0, 1))"
    )
    environment = {**os.environ, **gpu.environment(), "VGPU_NUM_DEVICES": "4"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert said.stdout.split() == ["4", "3", "cuda:3", "True"], said.stderr


def test_a_table_from_the_host_is_read_back_whole(gpu: VirtualGpu) -> None:
    code = (
        "import torch; t = torch.arange(61 * 257).reshape(61, 257).cuda()\n"
        "print(t[60, 256].item(), torch.equal(t.cpu(), torch.arange(61 * 257).reshape(61, 257)))"
    )
    assert on_gpu(gpu, code).stdout.strip() == f"{61 * 257 - 1} True"


def test_occupancy_is_bound_by_threads_and_by_shared_memory(gpu: VirtualGpu) -> None:
    code = (
        "import ctypes\n"
        "runtime = ctypes.CDLL(None)\n"
        "def blocks(threads, shared):\n"
        "    found = ctypes.c_int()\n"
        "    runtime.cudaOccupancyMaxActiveBlocksPerMultiprocessor(\n"
        "        ctypes.byref(found), None, threads, ctypes.c_size_t(shared))\n"
        "    return found.value\n"
        "print(blocks(1024, 0), blocks(128, 0), blocks(32, 0), blocks(128, 232448), blocks(128, 76 * 1024))"
    )
    assert on_gpu(gpu, code).stdout.split() == ["2", "16", "32", "1", "2"]


@pytest.mark.skipif(find_optional_headers(NCCL) is None, reason="no nccl.h here, so there is no virtual NCCL")
def test_nccl_makes_a_communicator_for_one_rank_of_many(gpu: VirtualGpu) -> None:
    code = (
        "import ctypes, os\n"
        "nccl = ctypes.CDLL(os.environ['PREHEAT_TEST_NCCL'])\n"
        "comm, ident, size, rank = ctypes.c_void_p(), (ctypes.c_char * 128)(), ctypes.c_int(), ctypes.c_int()\n"
        "class Id(ctypes.Structure): _fields_ = [('bytes', ctypes.c_char * 128)]\n"
        "print(nccl.ncclCommInitRank(ctypes.byref(comm), 8, Id(), 3), nccl.ncclCommCount(comm, ctypes.byref(size)),\n"
        "      nccl.ncclCommUserRank(comm, ctypes.byref(rank)), size.value, rank.value)"
    )
    environment = {**os.environ, **gpu.environment(), "PREHEAT_TEST_NCCL": str(gpu.folder / "libvnccl.so")}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert said.stdout.split() == ["0", "0", "0", "8", "3"], said.stderr


def test_nvml_names_the_target(gpu: VirtualGpu) -> None:
    code = (
        "import ctypes\n"
        "nvml = ctypes.CDLL('libnvidia-ml.so.1')\n"
        "device, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)\n"
        "major, minor = ctypes.c_int(), ctypes.c_int()\n"
        "nvml.nvmlInit_v2(); nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device))\n"
        "nvml.nvmlDeviceGetName(device, name, 96)\n"
        "nvml.nvmlDeviceGetCudaComputeCapability(device, ctypes.byref(major), ctypes.byref(minor))\n"
        "print(name.value.decode(), major.value, minor.value, end=' ')\n"
        "print(nvml.nvmlDeviceGetHandleByIndex_v2(1, ctypes.byref(device)))"
    )
    said = on_gpu(gpu, code)
    assert said.stdout.strip() == "NVIDIA B200 10 0 2", said.stderr
