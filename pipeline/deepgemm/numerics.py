"""Runs in a child process on the real GPU: load every cubin, and run each kernel key once against an fp32 reference.

    python -m pipeline.deepgemm.numerics JOB.json RESULT.json

The child has no compiler within reach: what the cache lacks fails by name. A kernel that faults takes this process
with it and not the run.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pipeline.arithmetic import ceil_div, round_up
from pipeline.servers.shared.problems import Kernel

SCALE_BLOCK = 128
FP8_E4M3_MAX = 448.0  # largest finite float8_e4m3fn
# A block of zeros must not divide by zero.
LEAST_BLOCK_MAX = 1e-4


def main(job_path: str, result_path: str) -> None:
    """Load each cubin, compare each case, and write the errors."""
    job = json.loads(Path(job_path).read_text())
    torch.manual_seed(job["seed"])
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.zeros(1, device="cuda")
    load_errors = {path: error for path in job["cubins"] if (error := load_error(path)) is not None}
    cases: list[dict[str, Any]] = []
    for case in job["cases"]:
        cases.append(compare(case))
        print(json.dumps({"launched": len(cases), "total": len(job["cases"])}), flush=True)
    Path(result_path).write_text(json.dumps({"load_errors": load_errors, "cases": cases}))


def load_error(path: str) -> str | None:
    """Why the driver does not take this cubin, or None when it loads and holds one kernel."""
    driver = ctypes.CDLL("libcuda.so.1")
    library = ctypes.c_void_p()
    count = ctypes.c_uint()
    code = driver.cuLibraryLoadFromFile(ctypes.byref(library), path.encode(), None, None, 0, None, None, 0)
    if code != 0:
        return f"the driver refuses it (CUresult {code})"
    driver.cuLibraryGetKernelCount(ctypes.byref(count), library)
    driver.cuLibraryUnload(library)
    return None if count.value == 1 else f"holds {count.value} kernels"


def compare(case: dict[str, Any]) -> dict[str, Any]:
    """Relative error (Frobenius) of one launch at one M."""
    run = RUNS[Kernel(case["kernel"])]
    try:
        with as_served(case["options"]) as call_options:
            out, expected = run(case["n"], case["k"], case["groups"], case["m"], **call_options)
        torch.cuda.synchronize()
    except RuntimeError as error:
        return {"keys": case["keys"], "error": None, "message": str(error).splitlines()[0]}
    difference = (out.float() - expected).norm() / expected.norm()
    return {"keys": case["keys"], "error": float(difference), "message": None}


@contextlib.contextmanager
def as_served(options: dict[str, Any]) -> Generator[dict[str, Any]]:
    """On the SMs that the options name; yields what is passed to the call itself."""
    import deep_gemm

    before = deep_gemm.get_num_sms()
    if "num_sms" in options:
        deep_gemm.set_num_sms(options["num_sms"])
    try:
        yield {name: value for name, value in options.items() if name == "compiled_dims"}
    finally:
        deep_gemm.set_num_sms(before)


def dense(n: int, k: int, groups: int, m: int, **call_options: Any) -> tuple[Tensor, Tensor]:
    """(result, reference) of one dense launch."""
    import deep_gemm

    x = activation(m, k)
    w = weight(n, k)
    out_MN = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    deep_gemm.fp8_gemm_nt(x, w, out_MN, **call_options)
    return out_MN, rows_of(*x) @ blocks_of(*w).T


def masked(n: int, k: int, groups: int, m: int) -> tuple[Tensor, Tensor]:
    """The same with `m` rows in each group's block."""
    import deep_gemm

    rows = round_up(m, SCALE_BLOCK)
    x = stacked(groups, lambda: activation(rows, k))
    w = stacked(groups, lambda: weight(n, k))
    out_GMN = torch.empty(groups, rows, n, device="cuda", dtype=torch.bfloat16)
    masked_m_G = torch.full((groups,), m, device="cuda", dtype=torch.int32)
    deep_gemm.fp8_m_grouped_gemm_nt_masked(x, w, out_GMN, masked_m_G, m)
    expected = [rows_of(x[0][g, :m], x[1][g, :m]) @ blocks_of(w[0][g], w[1][g]).T for g in range(groups)]
    return out_GMN[:, :m], torch.stack(expected)


def contiguous(n: int, k: int, groups: int, m: int) -> tuple[Tensor, Tensor]:
    """The same with aligned runs of rows, each run of one group."""
    import deep_gemm

    x = activation(m, k)
    w = stacked(groups, lambda: weight(n, k))
    alignment = deep_gemm.get_mk_alignment_for_contiguous_layout()
    group_M = (torch.arange(m, device="cuda") // alignment % groups).to(torch.int32)
    out_MN = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(x, w, out_MN, group_M)
    rows = rows_of(*x)
    expected = torch.empty(m, n, device="cuda")
    for group in range(min(groups, m // alignment)):
        of_group_M = group_M == group
        expected[of_group_M] = rows[of_group_M] @ blocks_of(w[0][group], w[1][group]).T
    return out_MN, expected


RUNS: dict[Kernel, Callable[..., tuple[Tensor, Tensor]]] = {
    Kernel.DENSE: dense,
    Kernel.MASKED: masked,
    Kernel.CONTIGUOUS: contiguous,
}
"""(n, k, groups, m, options of the call) to (result, reference)."""


def activation(m: int, k: int) -> tuple[Tensor, Tensor]:
    """Random rows in FP8 with one scale for each 1x128."""
    blocks = torch.randn(m, k // SCALE_BLOCK, SCALE_BLOCK, device="cuda")
    scale = blocks.abs().amax(-1).clamp(min=LEAST_BLOCK_MAX) / FP8_E4M3_MAX
    return (blocks / scale.unsqueeze(-1)).view(m, k).to(torch.float8_e4m3fn), scale


def weight(n: int, k: int) -> tuple[Tensor, Tensor]:
    """A random weight in FP8 with one scale for each 128x128; the last block of N may be cut."""
    scale_rows = ceil_div(n, SCALE_BLOCK)
    blocks = torch.randn(scale_rows, SCALE_BLOCK, k // SCALE_BLOCK, SCALE_BLOCK, device="cuda")
    scale = blocks.abs().amax(dim=(1, 3)) / FP8_E4M3_MAX
    data = (blocks / scale[:, None, :, None]).view(scale_rows * SCALE_BLOCK, k)[:n]
    return data.to(torch.float8_e4m3fn), scale


def stacked(number: int, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """One (data, scale) for each group, made one at a time: fp32 for all of them would not fit."""
    pairs = [make() for _ in range(number)]
    return torch.stack([data for data, _ in pairs]), torch.stack([scale for _, scale in pairs])


def rows_of(data: Tensor, scale: Tensor) -> Tensor:
    """fp32 values of an activation."""
    return (data.float().unflatten(-1, (-1, SCALE_BLOCK)) * scale.unsqueeze(-1)).flatten(-2)


def blocks_of(data: Tensor, scale: Tensor) -> Tensor:
    """fp32 values of a weight."""
    return rows_of(data, scale.repeat_interleave(SCALE_BLOCK, dim=0)[: data.shape[0]])


if __name__ == "__main__":
    main(*sys.argv[1:])
