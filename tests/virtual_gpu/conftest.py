"""Shared by the tests of the virtual GPU: the GPU itself, and how code is run on it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from pipeline.target import Target
from pipeline.virtual_gpu.build import VirtualGpu, build

B200 = Target(
    name="b200",
    product="NVIDIA B200",
    compute_capability="10.0",
    num_sms=148,
    l2_bytes=132120576,
    shared_bytes_per_block=232448,
    shared_bytes_per_sm=233472,
    memory_bytes=1 << 37,
)


@pytest.fixture(scope="session")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> VirtualGpu:
    return build(B200, cache_dir=tmp_path_factory.mktemp("gpu"))


def on_gpu(gpu: VirtualGpu, code: str) -> subprocess.CompletedProcess[str]:
    """Run Python code on the virtual GPU."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env={**os.environ, **gpu.environment()}, capture_output=True, text=True)
