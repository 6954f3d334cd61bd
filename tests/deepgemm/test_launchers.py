"""Every kernel kind on the real deep_gemm and the virtual GPU, and one small bake of each with the real nvcc."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.deepgemm.cache import cache_faults, publish, read_sources
from pipeline.deepgemm.discovery import Discoverer
from pipeline.deepgemm.farm import Farm, default_workers
from pipeline.deepgemm.launchers import LAUNCHERS
from pipeline.deepgemm.memo import package_folder
from pipeline.deepgemm.store import Store
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.servers.shared.problems import Kernel, MList, Options, Problem
from pipeline.virtual_gpu.build import build
from tests.fake_toolkit import make_toolkit
from tests.servers.recipes import target

SMALL = MList((range(1, 34, 32),))
ALIGNED = MList((range(128, 257, 128),))
BOTH = ("h200", "b200")
# (kernel, N, K, groups, options, targets, how its kernels are named)
KINDS: list[tuple[Kernel, int, int, int, Options, tuple[str, ...], str]] = [
    (Kernel.DENSE, 512, 512, 1, (), BOTH, "gemm_1d"),
    (Kernel.DENSE, 512, 512, 1, (("compiled_dims", "nk"),), BOTH, "gemm_1d"),
    (Kernel.DENSE, 512, 512, 1, (("num_sms", 72),), BOTH, "gemm_1d"),
    (Kernel.DENSE_BLOCK32, 512, 512, 1, (("block", 32),), BOTH, "gemm_1d"),
    (Kernel.DENSE_MXFP8, 512, 512, 1, (), ("b200",), "gemm_1d"),
    (Kernel.MASKED, 512, 512, 4, (), BOTH, "masked"),
    (Kernel.CONTIGUOUS, 512, 512, 4, (), BOTH, "contiguous"),
    (Kernel.CONTIGUOUS, 512, 512, 4, (("psum", 1),), BOTH, "contiguous"),
    (Kernel.BF16_DENSE, 512, 512, 1, (), BOTH, "bf16_gemm"),
    (Kernel.BF16_MASKED, 512, 512, 4, (), BOTH, "bf16"),
    (Kernel.BF16_CONTIGUOUS, 512, 512, 4, (), BOTH, "bf16"),
    (Kernel.FP4_MASKED, 512, 512, 4, (), ("b200",), "masked"),
    (Kernel.FP4_CONTIGUOUS, 512, 512, 4, (), ("b200",), "contiguous"),
    (Kernel.MQA_LOGITS, 64, 128, 1, (), BOTH, "mqa_logits"),
    (Kernel.MQA_LOGITS, 64, 128, 1, (("compressed", 1),), BOTH, "mqa_logits"),
    (Kernel.PAGED_MQA_LOGITS, 64, 128, 1, (("next_n", 1),), BOTH, "paged_mqa_logits"),
    (Kernel.PAGED_MQA_LOGITS, 64, 128, 1, (("next_n", 4),), ("b200",), "paged_mqa_logits"),
    (Kernel.PAGED_MQA_METADATA, 1, 1, 1, (), BOTH, "metadata"),
    (Kernel.EINSUM, 512, 512, 4, (), BOTH, "gemm_1d"),
    (Kernel.HC_PRENORM, 24, 4096, 1, (("num_splits", 4),), BOTH, "hc_prenorm"),
]


def problem(kernel: Kernel, n: int, k: int, groups: int, options: Options) -> Problem:
    m = ALIGNED if kernel.is_contiguous else SMALL
    return Problem(
        kernel=kernel,
        n=n,
        k=k,
        groups=groups,
        m=m,
        linears=("linear",),
        layers=(0,),
        ranks=(0,),
        rules=("rule",),
        options=options,
    )


def discoverer_of(folder: Path, gpu: str) -> Discoverer:
    toolkit = find_toolkit(str(make_toolkit(folder / "cuda").home))
    return Discoverer(build(target(gpu), cache_dir=folder / "gpu"), toolkit, Children(), folder / "scratch")


def test_every_kernel_has_a_launcher_and_a_case_here() -> None:
    assert set(LAUNCHERS) == set(Kernel) == {kind[0] for kind in KINDS}


@pytest.mark.parametrize("gpu", BOTH)
def test_each_kind_launches_kernels_of_its_own_name(tmp_path: Path, gpu: str) -> None:
    kinds = [kind for kind in KINDS if gpu in kind[5]]
    problems = [problem(*kind[:5]) for kind in kinds]
    discovery = discoverer_of(tmp_path, gpu).record(problems, tmp_path / "stubs", lambda done, total: None)
    for kind, kernels in zip(kinds, discovery.problems, strict=True):
        assert kernels.unavailable is None, kind
        assert kernels.launched >= 2
        assert any(kind[6] in key for key in kernels.keys), (kind, kernels.keys)


def test_options_that_decide_the_kernel_give_other_keys(tmp_path: Path) -> None:
    options: list[Options] = [(), (("compiled_dims", "nk"),), (("num_sms", 72),)]
    problems = [problem(Kernel.DENSE, 512, 512, 1, one) for one in options]
    discovery = discoverer_of(tmp_path, "h200").record(problems, tmp_path / "stubs", lambda done, total: None)
    keys = [{key for key in kernels.keys if "gemm" in key} for kernels in discovery.problems]
    assert not keys[0] & keys[1]
    assert not keys[0] & keys[2]
    again = discoverer_of(tmp_path / "again", "h200").record(
        [*reversed(problems)], tmp_path / "more", lambda done, total: None
    )
    assert again.problems[2].keys == discovery.problems[0].keys, "the SMs of one problem are given back for the next"


def test_the_schedule_of_decode_has_a_kernel_for_each_thirty_two_requests(tmp_path: Path) -> None:
    schedule = replace(problem(Kernel.PAGED_MQA_METADATA, 1, 1, 1, ()), m=MList.up_to(100))
    (kernels,) = discoverer_of(tmp_path, "h200").record([schedule], tmp_path / "stubs", lambda a, b: None).problems
    assert [(first, last) for first, last, _ in kernels.runs] == [(1, 32), (33, 64), (65, 96), (97, 100)]


def test_a_function_that_the_library_lacks_is_named_and_the_rest_goes_on(tmp_path: Path) -> None:
    old = tmp_path / "old" / "deep_gemm"
    real = package_folder()
    old.mkdir(parents=True)
    for part in real.iterdir():
        (old / part.name).symlink_to(part)
    (old / "__init__.py").unlink()
    (old / "__init__.py").write_text((real / "__init__.py").read_text() + "\ndel fp8_einsum\n")
    discoverer = replace(discoverer_of(tmp_path, "h200"), deep_gemm=str(old.parent))
    problems = [problem(Kernel.EINSUM, 512, 512, 4, ()), problem(Kernel.DENSE, 512, 512, 1, ())]
    discovery = discoverer.record(problems, tmp_path / "stubs", lambda done, total: None)
    assert "has no fp8_einsum" in (discovery.problems[0].unavailable or "")
    assert discovery.problems[1].launched == 2
    assert len(discovery.unavailable) == 1


@pytest.mark.slow
@pytest.mark.parametrize("gpu", BOTH)
def test_one_small_bake_of_every_kind_with_the_real_compiler_is_complete(tmp_path: Path, gpu: str) -> None:
    toolkit = find_toolkit()
    chosen = target(gpu)
    discoverer = Discoverer(build(chosen, cache_dir=tmp_path / "gpu"), toolkit, Children(), tmp_path / "scratch")
    problems = [problem(*kind[:5]) for kind in KINDS if gpu in kind[5]]
    discoverer.record(problems, tmp_path / "stubs", lambda done, total: None)
    farm = Farm(toolkit, Store(tmp_path / "store"), Children(), default_workers(), chosen.sm)
    compiled = farm.compile(read_sources(tmp_path / "stubs"), lambda state: None)
    assert compiled.failed == {}
    publish(tmp_path / "stubs", compiled.cubins, tmp_path / "warm", toolkit=toolkit, sm=chosen.sm)
    _, missing = discoverer.check(problems, tmp_path / "warm", lambda done, total: None)
    assert missing == ()
    assert cache_faults(tmp_path / "warm", chosen.sm) == (len(compiled.cubins), [])
