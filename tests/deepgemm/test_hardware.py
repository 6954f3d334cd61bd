from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.deepgemm.discovery import Discovery, ProblemKernels
from pipeline.deepgemm.hardware import MAX_RELATIVE_ERROR, REFERENCED, gpu_mismatch, judge, representative_cases
from pipeline.deepgemm.numerics import RUNS
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.target import Target
from tests.virtual_gpu.conftest import B200

PROBLEM = Problem(
    kernel=Kernel.DENSE, n=512, k=256, groups=1, m=MList.up_to(64), linears=("linear",), layers=(0,), ranks=(0,)
)
DISCOVERY = Discovery(
    (ProblemKernels(((1, 16, ("layout", "gemm.small")), (17, 64, ("layout", "gemm.large"))), 64),), 0.1, 1
)


def outcome(error: float | None, *, load_errors: dict[str, str] | None = None) -> dict[str, Any]:
    message = None if error is not None else "CUDA error: invalid image"
    return {"load_errors": load_errors or {}, "cases": [{"keys": ["gemm.a"], "error": error, "message": message}]}


def test_every_key_is_executed_once_at_the_first_m_that_needs_it():
    cases = representative_cases([PROBLEM], DISCOVERY)
    assert [(case["m"], case["keys"]) for case in cases] == [(1, ["layout", "gemm.small"]), (17, ["gemm.large"])]
    assert sorted(key for case in cases for key in case["keys"]) == sorted(DISCOVERY.keys)


def test_the_kernels_that_count_as_referenced_are_those_that_the_child_can_run():
    assert set(RUNS) == set(REFERENCED)


def test_a_small_error_is_right():
    checked = judge(outcome(1.7e-3), 1)
    assert (checked.faults, checked.num_executed, checked.num_loaded, checked.max_relative_error) == ((), 1, 1, 1.7e-3)


@pytest.mark.parametrize("error", [2 * MAX_RELATIVE_ERROR, 1.0, math.nan, math.inf])
def test_a_wrong_or_missing_number_is_a_fault(error: float):
    (fault,) = judge(outcome(error), 1).faults
    assert fault.startswith("gemm.a: relative error")


def test_a_kernel_that_does_not_run_is_a_fault_with_the_drivers_words():
    checked = judge(outcome(None), 1)
    assert checked.faults == ("gemm.a: did not run: CUDA error: invalid image",)
    assert checked.max_relative_error is None


def test_a_cubin_that_the_driver_refuses_is_a_fault():
    checked = judge(outcome(1e-3, load_errors={"/x/kernel.cubin": "the driver refuses it (CUresult 200)"}), 3)
    assert checked.num_loaded == 2
    assert checked.faults == ("/x/kernel.cubin: the driver refuses it (CUresult 200)",)


def test_a_gpu_that_is_not_the_targets_like_is_named(tmp_path_factory: pytest.TempPathFactory):
    """The virtual GPU plays the machine's own: a B200 here, an H200 as the target."""
    from pipeline.virtual_gpu.build import build

    gpu = build(B200, cache_dir=tmp_path_factory.mktemp("gpu"))
    code = (
        "from pipeline.deepgemm.hardware import gpu_mismatch\n"
        "from pipeline.target import Target\n"
        "print(gpu_mismatch(Target(name='h200', num_sms=132)))\n"
        "print(gpu_mismatch(Target(name='b200', compute_capability='10.0', num_sms=148)))\n"
    )
    project = Path(__file__).parents[2]
    command = [sys.executable, "-c", code]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(project), **gpu.environment()}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    for_h200, for_b200 = child.stdout.splitlines()
    assert for_h200.startswith("this machine has NVIDIA B200 (compute capability 10.0, 148 SMs)")
    assert "132 SMs" in for_h200
    assert for_b200 == "None"


@pytest.mark.cuda
def test_on_a_gpu_the_question_is_answered():
    assert gpu_mismatch(Target(name="nothing", num_sms=1)) is not None
