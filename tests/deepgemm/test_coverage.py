"""The proof that a cache is complete, on a GPU that no machine has; once the virtual GPU plays the machine's own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.deepgemm.coverage import Coverage, key_differences, missing_line
from pipeline.deepgemm.discovery import Discoverer, Discovery, ProblemKernels
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.errors import HostError
from pipeline.engine.events import Event, Events, Reporter
from pipeline.figures import VerifyFigures
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.virtual_gpu.build import VirtualGpu, build
from tests.fake_toolkit import make_toolkit
from tests.servers.recipes import target

PROJECT = Path(__file__).parents[2]
# Between the SM counts of real GPUs, so that hardware checks are skipped wherever the tests run.
NOBODYS_GPU = replace(target("h200"), num_sms=130)


def problem(kernel: Kernel, n: int, k: int, groups: int, m: MList) -> Problem:
    return Problem(kernel=kernel, n=n, k=k, groups=groups, m=m, linears=("linear",), layers=(0,), ranks=(0,))


DENSE = problem(Kernel.DENSE, 512, 512, 1, MList.up_to(64))
FEWER_SMS = replace(DENSE, m=MList.up_to(2), options=(("num_sms", 72), ("compiled_dims", "nk")))
MASKED = problem(Kernel.MASKED, 512, 256, 4, MList.up_to(8))
CONTIGUOUS = problem(Kernel.CONTIGUOUS, 256, 512, 2, MList.of([128, 256]))
INDEXER = problem(Kernel.MQA_LOGITS, 64, 128, 1, MList.up_to(2))
REFERENCED = (DENSE, FEWER_SMS, MASKED, CONTIGUOUS)
PROBLEMS = (*REFERENCED, INDEXER)


@dataclass
class Proof:
    """One coverage over a cache, with what it measured and reported."""

    discoverer: Discoverer
    warm_cache: Path
    figures: VerifyFigures = field(default_factory=VerifyFigures)
    events: list[Event] = field(default_factory=list[Event])
    faults: list[str] = field(default_factory=list[str])
    num_keys: dict[str, int] = field(default_factory=dict[str, int])

    def check(self, *, on_real_gpu: bool = False) -> Proof:
        reporter = Reporter(Events(self.events.append), "verify")
        coverage = Coverage(self.discoverer, self.warm_cache, self.figures, reporter)
        self.faults, self.num_keys = coverage.check(PROBLEMS, on_real_gpu=on_real_gpu)
        return self


@pytest.fixture(scope="module")
def discoverer(tmp_path_factory: pytest.TempPathFactory) -> Discoverer:
    folder = tmp_path_factory.mktemp("coverage")
    toolkit = find_toolkit(str(make_toolkit(folder / "cuda").home))
    return Discoverer(build(NOBODYS_GPU, cache_dir=folder / "gpu"), toolkit, Children(), folder / "scratch")


@pytest.fixture(scope="module")
def discovered(discoverer: Discoverer) -> tuple[Path, Discovery]:
    """(a cache with an entry for every key, what was discovered); coverage looks at the names of entries only."""
    cache = discoverer.scratch_dir.parent / "complete"
    return cache, discoverer.record(PROBLEMS, cache, lambda done, total: None)


@pytest.fixture(scope="module")
def complete(discoverer: Discoverer, discovered: tuple[Path, Discovery]) -> Proof:
    return Proof(discoverer, discovered[0]).check()


def test_a_complete_cache_has_no_fault_and_the_figures_say_what_was_launched(
    complete: Proof, discovered: tuple[Path, Discovery]
):
    _, discovery = discovered
    assert complete.faults == []
    assert complete.num_keys == {
        each.name: len(kernels.keys) for each, kernels in zip(PROBLEMS, discovery.problems, strict=True)
    }
    assert all(number > 0 for number in complete.num_keys.values())
    assert complete.figures.coverage_m_values == discovery.num_launched == 64 + 2 + 8 + 2 + 2
    assert complete.figures.coverage_compiles == 0
    assert (complete.figures.seconds_coverage or 0) > 0


def test_without_the_target_gpu_the_reason_is_a_figure_and_nothing_counts_as_executed(complete: Proof):
    figures = complete.figures
    assert figures.hardware_skipped
    assert (figures.cubins_loaded, figures.numerics_checked, figures.without_reference) == (None, None, None)
    assert (figures.max_relative_error, figures.real_keys) == (None, None)
    assert "kernels executed" not in {event.data["what"] for event in complete.events}


def test_a_missing_entry_is_named_with_the_problem_and_the_m_that_would_compile_it(
    discoverer: Discoverer, discovered: tuple[Path, Discovery], tmp_path: Path
):
    cache, discovery = discovered
    warm = shutil.copytree(cache, tmp_path / "warm")
    first, last, keys = discovery.problems[0].runs[-1]
    gemm = next(key for key in keys if "gemm" in key)
    shutil.rmtree(warm / "cache" / gemm)
    proof = Proof(discoverer, warm).check()
    (fault,) = proof.faults
    assert fault.startswith(f"{gemm} is not in the cache: dense 512x512 would compile it at M ")
    assert fault.endswith(f" to {last}")
    assert first <= last == 64
    assert proof.figures.coverage_compiles == 1
    assert not (warm / "cache" / gemm).exists(), "a check writes nothing into the cache"


def test_discovery_on_the_real_gpu_needs_the_target_gpu(discoverer: Discoverer, discovered: tuple[Path, Discovery]):
    proof = Proof(discoverer, discovered[0])
    with pytest.raises(HostError, match=r"verify.discover_on=real needs the target GPU: .*; use .*=virtual"):
        proof.check(on_real_gpu=True)
    assert proof.figures.coverage_m_values, "what was measured before is kept"


def test_a_key_that_no_problem_launches_is_missing_all_the_same():
    discovery = Discovery((ProblemKernels(((1, 16, ("gemm.a",)), (17, 64, ("gemm.b",))), 64),), 0.1, 1)
    assert missing_line("gemm.b", [DENSE], discovery) == (
        "gemm.b is not in the cache: dense 512x512 would compile it at M 17 to 64"
    )
    assert missing_line("gemm.c", [DENSE], discovery) == "gemm.c is not in the cache"


def test_keys_that_only_one_gpu_needs_are_faults_that_name_the_gpu():
    assert key_differences({"a", "b", "v"}, {"a", "b", "r"}) == [
        "r: needed on the real GPU, not on the virtual one",
        "v: needed on the virtual GPU, not on the real one",
    ]
    assert key_differences({"a"}, {"a"}) == []


ON_ITS_OWN_GPU = """
import json, sys
from dataclasses import asdict
from pathlib import Path
from tests.deepgemm.test_coverage import NOBODYS_GPU, Proof
from pipeline.deepgemm.discovery import Discoverer
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.virtual_gpu.build import VirtualGpu
gpu, toolkit, scratch, warm = map(Path, sys.argv[1:])
proof = Proof(Discoverer(VirtualGpu(gpu, NOBODYS_GPU), find_toolkit(str(toolkit)), Children(), scratch), warm)
proof.check(on_real_gpu=True)
counted = sorted({event.data["what"] for event in proof.events})
print(json.dumps({"faults": proof.faults, "figures": asdict(proof.figures), "counted": counted}))
"""


def on_its_own_gpu(discoverer: Discoverer, warm_cache: Path) -> dict[str, Any]:
    """The proof in a process whose own GPU is the virtual one: every result is zero there, and so is every error."""
    assert isinstance(discoverer.gpu, VirtualGpu)
    places = (discoverer.gpu.folder, discoverer.toolkit.cuda_home, discoverer.scratch_dir, warm_cache)
    command = [sys.executable, "-c", ON_ITS_OWN_GPU, *map(str, places)]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), **discoverer.gpu.environment()}
    child = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout.splitlines()[-1])


def test_on_the_target_gpu_every_kernel_with_a_reference_is_executed_and_both_discoveries_agree(
    discoverer: Discoverer, discovered: tuple[Path, Discovery]
):
    cache, discovery = discovered
    outcome = on_its_own_gpu(discoverer, cache)
    figures = outcome["figures"]
    referenced = {key for kernels in discovery.problems[: len(REFERENCED)] for key in kernels.keys}
    assert outcome["faults"] == []
    assert "kernels executed" in outcome["counted"]
    assert figures["hardware_skipped"] is None
    assert figures["cubins_loaded"] == figures["real_keys"] == len(discovery.keys)
    assert figures["numerics_checked"] == len(referenced)
    assert figures["without_reference"] == len(discovery.keys) - len(referenced) > 0
    assert figures["max_relative_error"] == 0
    assert figures["seconds_real_discovery"] > 0
