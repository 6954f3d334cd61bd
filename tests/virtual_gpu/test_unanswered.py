"""What cuBLAS and NCCL hand back is answered, or it fails with its name; what they launch does nothing."""

from __future__ import annotations

import re
import subprocess

import pytest

from pipeline.virtual_gpu.build import DECLARED_CUBLAS, HANDS_BACK, VirtualGpu, library_source
from pipeline.virtual_gpu.headers import NCCL, find_optional_headers
from tests.virtual_gpu.conftest import on_gpu

NCCL_HEADERS = find_optional_headers(NCCL)
NEEDS_NCCL = pytest.mark.skipif(NCCL_HEADERS is None, reason="no nccl.h here, so there is no virtual NCCL")
# CUBLAS_STATUS_NOT_SUPPORTED and ncclInternalError.
LIBRARIES = [("cublas", 15), pytest.param("nccl", 3, marks=NEEDS_NCCL)]


def generated(gpu: VirtualGpu, library: str, macro: str) -> list[str]:
    """The functions of a library that only the generated source defines, as `macro` does."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", gpu.folder / f"libv{library}.so"], capture_output=True, text=True, check=True
    )
    weak = {line.split()[2] for line in listed.stdout.splitlines() if line.split()[1] == "W"}
    source = (gpu.folder / f"generated_{library}.c").read_text()
    return [name for name in re.findall(rf"^{macro}\((\w+)", source, re.MULTILINE) if name in weak]


def call(gpu: VirtualGpu, library: str, calls: list[str]) -> subprocess.CompletedProcess[str]:
    """Print what each call of the library returns."""
    code = (
        "import ctypes\n"
        f"library = ctypes.CDLL({str(gpu.folder / f'libv{library}.so')!r})\n"
        "value = ctypes.byref(ctypes.c_int())\n"
        f"print([{', '.join(f'library.{one}' for one in calls)}])\n"
    )
    return on_gpu(gpu, code)


@pytest.mark.parametrize(("library", "error"), LIBRARIES)
def test_a_result_that_is_not_answered_fails_with_the_name(gpu: VirtualGpu, library: str, error: int) -> None:
    names = generated(gpu, library, "UNANSWERED")
    assert len(names) > 0
    said = call(gpu, library, [f"{name}()" for name in names])
    assert said.stdout.strip() == str([error] * len(names))
    assert said.stderr.splitlines() == [f"virtual GPU: {name} is not answered" for name in names]


@pytest.mark.parametrize(("library", "error"), LIBRARIES)
def test_nothing_that_is_asked_of_a_library_succeeds_without_a_result(
    gpu: VirtualGpu, library: str, error: int
) -> None:
    silent = generated(gpu, library, "NOTHING_TO_DO")
    assert len(silent) > 0
    assert [name for name in silent if HANDS_BACK.search(name)] == []
    assert [name for name in silent if "Get" in name] == []


def is_result(parameter: str) -> bool:
    """Whether a parameter points to something that is neither constant nor a buffer."""
    declared = parameter.strip()
    return "*" in declared and not declared.startswith("const ") and not re.fullmatch(r"void\s*\*\s*\w+", declared)


@NEEDS_NCCL
def test_what_nccl_hands_back_through_a_pointer_is_answered_or_named(gpu: VirtualGpu) -> None:
    """The prototypes agree with the rule of names; what takes a stream is a launch."""
    assert NCCL_HEADERS is not None
    header = (NCCL_HEADERS / "nccl.h").read_text()
    prototypes = re.findall(r"^\s*ncclResult_t\s+(nccl[A-Z]\w+)\s*\(([^()]*)\)", header, re.MULTILINE)
    handing_back = {
        name
        for name, parameters in prototypes
        if "cudaStream_t" not in parameters and any(map(is_result, parameters.split(",")))
    }
    assert {"ncclCommCount", "ncclCommGetAsyncError", "ncclMemAlloc"} <= handing_back
    assert handing_back & set(generated(gpu, "nccl", "NOTHING_TO_DO")) == set()


def test_the_return_type_decides_what_a_failure_returns() -> None:
    header = (
        "cublasStatus_t CUBLASWINAPI cublasGetNumber(int *number);\n"
        "const char* CUBLASWINAPI cublasGetText(int number);\n"
        "size_t CUBLASWINAPI\n  cublasGetSize(void);\n"
        "cublasStatus_t CUBLASWINAPI cublasSgetrfBatched(float *const a[]);\n"
    )
    lines = library_source(header, DECLARED_CUBLAS).splitlines()[-4:]
    assert lines == [
        "UNANSWERED(cublasGetNumber, 15)",
        "UNANSWERED(cublasGetSize, 0)",
        "UNANSWERED(cublasGetText, 0)",
        "NOTHING_TO_DO(cublasSgetrfBatched)",
    ]


@pytest.mark.parametrize(
    ("library", "launches"),
    [
        (
            "cublas",
            ["cublasGemmEx", "cublasSgemm_v2", "cublasSgetrfBatched", "cublasLtMatmul", "cublasSetWorkspace_v2"],
        ),
        pytest.param("nccl", ["ncclAllReduce", "ncclSend", "ncclGroupStart", "ncclCommFinalize"], marks=NEEDS_NCCL),
    ],
)
def test_a_launch_does_nothing_and_succeeds(gpu: VirtualGpu, library: str, launches: list[str]) -> None:
    assert set(launches) <= set(generated(gpu, library, "NOTHING_TO_DO"))
    said = call(gpu, library, [f"{name}()" for name in launches])
    assert said.stdout.strip() == str([0] * len(launches))
    assert said.stderr == ""


def test_a_cublas_handle_tells_what_it_was_told(gpu: VirtualGpu) -> None:
    code = (
        "import ctypes\n"
        f"library = ctypes.CDLL({str(gpu.folder / 'libvcublas.so')!r})\n"
        "handle = ctypes.c_void_p()\n"
        "told = ctypes.c_int()\n"
        "library.cublasCreate_v2(ctypes.byref(handle))\n"
        "for what in ('MathMode', 'PointerMode_v2', 'AtomicsMode', 'SmCountTarget'):\n"
        "    code = getattr(library, f'cublasSet{what}')(handle, 1)\n"
        "    print(code, getattr(library, f'cublasGet{what}')(handle, ctypes.byref(told)), told.value)\n"
        "for name in ('cublasGetStatusName', 'cublasLtGetStatusString'):\n"
        "    getattr(library, name).restype = ctypes.c_char_p\n"
        "    print(getattr(library, name)(15).decode(), getattr(library, name)(99).decode())\n"
    )
    said = on_gpu(gpu, code)
    status = "CUBLAS_STATUS_NOT_SUPPORTED unrecognized status"
    assert said.stdout.splitlines() == ["0 0 1"] * 4 + [status] * 2, said.stderr
    assert said.stderr == ""


def test_torch_asks_nothing_of_cublas_that_is_not_answered(gpu: VirtualGpu) -> None:
    code = (
        "import torch\n"
        "for precision in ('highest', 'high', 'medium'):\n"
        "    torch.set_float32_matmul_precision(precision)\n"
        "    for dtype in (torch.bfloat16, torch.float16, torch.float32):\n"
        "        x = torch.empty(8, 8, device='cuda', dtype=dtype)\n"
        "        def products():\n"
        "            torch.bmm(x[None], x[None])\n"
        "            torch.addmm(x[0], x, x)\n"
        "            torch.nn.functional.linear(x, x, x[0])\n"
        "            return x @ x\n"
        "        products()\n"
        "        with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):\n"
        "            products()\n"
        "        graph.replay()\n"
        "print('done')\n"
    )
    said = on_gpu(gpu, code)
    assert said.stdout.strip() == "done", said.stderr
    assert "is not answered" not in said.stderr
