"""What only the target GPU itself can show: that every cubin loads, and that every kernel computes the right thing."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.deepgemm.discovery import Discoverer, Discovery, link_cache
from pipeline.engine.errors import StageError
from pipeline.engine.jobs import Job, OnProgress
from pipeline.engine.scratch import scratch_folder
from pipeline.servers.shared.problems import Kernel, Problem
from pipeline.target import Target

# bf16 output rounds to 2^-9 of each value and the tensor cores accumulate FP8 products in less than fp32.
MAX_RELATIVE_ERROR = 5e-3
SEED = 20251129
# What numerics.py has a reference for.
REFERENCED = (Kernel.DENSE, Kernel.MASKED, Kernel.CONTIGUOUS)
REFERENCED_OPTIONS = frozenset({"num_sms", "compiled_dims"})
DEVICE_QUESTION = """
import json, torch
if torch.cuda.is_available():
    p = torch.cuda.get_device_properties(0)
    print(json.dumps([p.name, f"{p.major}.{p.minor}", p.multi_processor_count]))
"""


@dataclass(frozen=True, slots=True)
class RealGpu:
    """The GPU of this machine, for a worker that must not be put on the virtual one."""

    target: Target
    stub: Path | None = None
    """A loadable cubin that does nothing, which the stand-in hands out instead of text."""

    def environment(self) -> dict[str, str]:
        """Nothing but the stub: the machine's own runtime and driver answer."""
        return {"PREHEAT_STUB_CUBIN": str(self.stub)} if self.stub else {}


def on_real_gpu(discoverer: Discoverer, stub: Path | None = None) -> Discoverer:
    """The same discoverer on this machine's GPU."""
    return replace(discoverer, gpu=RealGpu(discoverer.gpu.target, stub))


def discover_on_real_gpu(discoverer: Discoverer, problems: Sequence[Problem], on_progress: OnProgress) -> set[str]:
    """The keys that the same M need on the real GPU; every kernel is a stub that does nothing."""
    with scratch_folder(discoverer.scratch_dir, "real-") as folder:
        stub = compile_empty_kernel(discoverer, folder)
        on_real_gpu(discoverer, stub).record(problems, folder / "deep_gemm", on_progress)
        return {entry.name for entry in (folder / "deep_gemm" / "cache").iterdir()}


def compile_empty_kernel(discoverer: Discoverer, folder: Path) -> Path:
    """A cubin for the target with one kernel that does nothing."""
    cubin = folder / "stub.cubin"
    source = folder / "stub.cu"
    source.write_text('extern "C" __global__ void stub() {}\n')
    arch = f"sm_{discoverer.gpu.target.sm}a"
    output = ["--output-file", str(cubin)]
    command = [str(discoverer.toolkit.nvcc), str(source), "--cubin", *output, f"--gpu-architecture={arch}"]
    nvcc = subprocess.run(command, capture_output=True, text=True)
    if nvcc.returncode != 0:
        raise StageError(f"nvcc could not compile an empty kernel for {arch}: {nvcc.stderr}")
    return cubin


@dataclass(frozen=True, slots=True)
class HardwareCheck:
    """What the GPU confirmed, and everything that is wrong."""

    num_loaded: int
    """Cubins that the driver takes."""
    num_executed: int
    """Keys that ran."""
    max_relative_error: float | None
    faults: tuple[str, ...]


def gpu_mismatch(target: Target) -> str | None:
    """Why hardware checks cannot run here, or None when the GPU of this machine is the target's like.

    torch answers in a child process, so that the caller makes no CUDA context.
    """
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return "no CUDA driver on this machine"
    child = subprocess.run([sys.executable, "-c", DEVICE_QUESTION], capture_output=True, text=True)
    if child.returncode != 0:
        last_line = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"this machine's GPU could not be asked (exit {child.returncode}): {last_line}"
    lines = child.stdout.strip().splitlines()
    if not lines:
        return "no CUDA GPU on this machine"
    name, capability, num_sms = json.loads(lines[-1])
    if (capability, num_sms) == (target.compute_capability, target.num_sms):
        return None
    wanted = f"compute capability {target.compute_capability} with {target.num_sms} SMs"
    return f"this machine has {name} (compute capability {capability}, {num_sms} SMs), the target has {wanted}"


def representative_cases(problems: Sequence[Problem], discovery: Discovery) -> list[dict[str, Any]]:
    """One launch for each kernel key: the first (problem, M) that needs it, with the keys it brings.

    Kernels without an fp32 reference here are loaded and not executed.
    """
    covered: set[str] = set()
    cases: list[dict[str, Any]] = []
    for problem, kernels in zip(problems, discovery.problems, strict=True):
        if problem.kernel not in REFERENCED or not REFERENCED_OPTIONS.issuperset(name for name, _ in problem.options):
            continue
        for first, _, keys in kernels.runs:
            if new := [key for key in keys if key not in covered]:
                covered.update(keys)
                shape = {"kernel": problem.kernel.value, "n": problem.n, "k": problem.k, "groups": problem.groups}
                cases.append({**shape, "m": first, "keys": new, "options": dict(problem.options)})
    return cases


def check_on_gpu(
    discoverer: Discoverer, problems: Sequence[Problem], discovery: Discovery, warm_cache: Path, on_progress: OnProgress
) -> HardwareCheck:
    """Load and execute what is published; faults are what does not load, does not run or is not right."""
    cases = representative_cases(problems, discovery)
    cubins = [str(path) for path in sorted((warm_cache / "cache").glob("*/kernel.cubin"))]
    with scratch_folder(discoverer.scratch_dir, "numerics-") as folder:
        linked = link_cache(warm_cache, folder)
        content = {"cubins": cubins, "cases": cases, "seed": SEED}
        environment = on_real_gpu(discoverer).environment(folder, linked)
        job = Job("pipeline.deepgemm.numerics", content, folder, environment)
        answer = job.run(discoverer.children, on_progress)
    if answer.result is None:
        raise StageError(f"the hardware check ended with code {answer.returncode}:\n{answer.last_words}")
    return judge(answer.result, len(cubins))


def judge(outcome: dict[str, Any], num_cubins: int) -> HardwareCheck:
    """What the child's numbers mean."""
    faults = [f"{path}: {message}" for path, message in outcome["load_errors"].items()]
    errors: list[float] = []
    num_executed = 0
    for case in outcome["cases"]:
        names = ", ".join(case["keys"])
        if case["error"] is None:
            faults.append(f"{names}: did not run: {case['message']}")
            continue
        errors.append(case["error"])
        num_executed += len(case["keys"])
        # A NaN is no small error: it compares false with everything.
        if not case["error"] <= MAX_RELATIVE_ERROR:
            faults.append(
                f"{names}: relative error {case['error']:.2e} against fp32, at most {MAX_RELATIVE_ERROR} is right"
            )
    num_loaded = num_cubins - len(outcome["load_errors"])
    return HardwareCheck(num_loaded, num_executed, max(errors, default=None), tuple(faults))
