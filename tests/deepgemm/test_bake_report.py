from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.deepgemm.bake import Bake
from pipeline.deepgemm.bake_report import ERRORS_SHOWN, require_complete, sweep_figures, sweep_summary
from pipeline.deepgemm.cache import PublishedKeys
from pipeline.deepgemm.compiler import Source
from pipeline.deepgemm.discovery import Discovery, ProblemKernels
from pipeline.deepgemm.farm import Compiled, Farm
from pipeline.deepgemm.memo import RememberedDiscovery
from pipeline.deepgemm.store import Store
from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.children import Children
from pipeline.engine.errors import IncompleteError, StageError
from pipeline.servers.shared.problems import Kernel, MList, Problem

TOOLKIT = Toolkit(Path("/cuda/bin/nvcc"), Path("/cuda"), "nvcc\nrelease 13.0, V13.0.88\nBuild x\n", "a test")
FARM = Farm(TOOLKIT, Store(Path("/store")), Children(), 4, 90)
PROBLEM = Problem(
    kernel=Kernel.DENSE, n=512, k=512, groups=1, m=MList.up_to(16), linears=("linear",), layers=(0,), ranks=(0,)
)
LAUNCHED = ProblemKernels(((1, 16, ("a", "b")),), 16)
UNAVAILABLE = ProblemKernels((), 0, "deep_gemm of /old has no fp8_einsum")


def sources(*keys: str) -> list[Source]:
    return [Source(key, "code", ()) for key in keys]


def remembered_discovery(*problems: ProblemKernels, is_new: bool = True) -> RememberedDiscovery:
    discovery = Discovery(problems, seconds=1.23456, peak_bytes=4096)
    return RememberedDiscovery(discovery, Path("/stubs"), is_new)


def bake(
    *problems: ProblemKernels,
    server_keys: tuple[str, ...] | None = None,
    failed: dict[str, str] | None = None,
    is_new: bool = True,
) -> Bake:
    """Kernels a and b for the rules' problems, `server_keys` for the server; what has not failed is compiled."""
    failed = failed or {}
    rules_sources = sources("a", "b") if problems else None
    server_sources = None if server_keys is None else sources(*server_keys)
    keys = {source.key for source in (rules_sources or []) + (server_sources or [])}
    cubins = {key: Path(f"/store/{key}.cubin") for key in sorted(keys - set(failed))}
    return Bake(
        discovery=remembered_discovery(*problems, is_new=is_new) if problems else None,
        rules_sources=rules_sources,
        server_sources=server_sources,
        compiled=Compiled(cubins, failed, num_compiled=len(cubins), num_reused=0, wall_s=2.04, cpu_s=3.0004),
        published=PublishedKeys(added=["a"], kept=["b"], replaced=["damaged"]),
    )


def test_the_figures_of_the_rules_problems():
    figures = sweep_figures(bake(LAUNCHED), [PROBLEM], FARM)
    assert (figures.problems, figures.m_values, figures.keys) == (1, 16, 2)
    assert (figures.compiled, figures.reused, figures.failed, figures.missing) == (2, 0, 0, 0)
    assert (figures.discovery_s, figures.discovery_reused, figures.discovery_peak_bytes) == (1.235, False, 4096)
    assert (figures.farm_wall_s, figures.farm_cpu_s, figures.farm_jobs) == (2.04, 3.0, 4)
    assert figures.nvcc == "nvcc 13.0 (Build x) from a test"
    assert figures.not_in_library == []
    assert (figures.errors, figures.rules_only_keys, figures.server_only_keys) == (None, None, None)


def test_added_kept_and_replaced_entries_are_figures():
    figures = sweep_figures(bake(LAUNCHED), [PROBLEM], FARM)
    assert (figures.published, figures.kept, figures.replaced) == (1, 1, ["damaged"])


def test_a_discovery_of_an_earlier_run_takes_no_time_of_this_one():
    figures = sweep_figures(bake(LAUNCHED, is_new=False), [PROBLEM], FARM)
    assert (figures.discovery_s, figures.discovery_reused) == (None, True)


def test_with_both_lists_the_keys_of_only_one_are_figures():
    figures = sweep_figures(bake(LAUNCHED, server_keys=("b", "c")), [PROBLEM], FARM)
    assert figures.keys == 3
    assert (figures.rules_only_keys, figures.server_only_keys) == (["a"], ["c"])


def test_the_servers_list_alone_leaves_the_figures_of_discovery_unmeasured():
    figures = sweep_figures(bake(server_keys=("c",)), [], FARM)
    assert figures.keys == 1
    assert (figures.problems, figures.m_values, figures.discovery_reused, figures.not_in_library) == (None,) * 4
    assert (figures.rules_only_keys, figures.server_only_keys) == (None, None)


def test_a_rejected_kernel_is_missing_and_its_message_is_a_figure():
    one_failed = bake(LAUNCHED, failed={"b": "nvcc exit 2: error"})
    figures = sweep_figures(one_failed, [PROBLEM], FARM)
    assert (figures.failed, figures.missing, figures.errors) == (1, 1, {"b": "nvcc exit 2: error"})
    with pytest.raises(StageError) as raised:
        require_complete(one_failed, [PROBLEM], ["the server did not answer"], figures)
    assert not isinstance(raised.value, IncompleteError)
    assert str(raised.value) == "nvcc rejected 1 of 2 kernels; the others are cached\nb: nvcc exit 2: error"
    assert raised.value.figures == (figures,)


def test_only_the_first_messages_of_the_compiler_are_shown():
    failed = {f"k{number}": f"error {number}" for number in range(ERRORS_SHOWN + 2)}
    none_compiled = bake(server_keys=tuple(failed), failed=failed)
    figures = sweep_figures(none_compiled, [], FARM)
    with pytest.raises(StageError) as raised:
        require_complete(none_compiled, [], [], figures)
    assert str(raised.value).splitlines()[1:] == ["k0: error 0", "k1: error 1", "k2: error 2"]
    assert figures.errors == failed


def test_problems_that_the_library_cannot_launch_leave_the_bake_incomplete():
    partly = bake(LAUNCHED, UNAVAILABLE, UNAVAILABLE)
    figures = sweep_figures(partly, [PROBLEM] * 3, FARM)
    assert figures.not_in_library == ["deep_gemm of /old has no fp8_einsum"]
    with pytest.raises(IncompleteError) as raised:
        require_complete(partly, [PROBLEM] * 3, [], figures)
    assert str(raised.value) == (
        "2 of 3 problems cannot be launched: deep_gemm of /old has no fp8_einsum; the others are cached. "
        "Install the deep_gemm that the server ships (requirements.txt has SGLang 0.5.23's)"
    )
    assert raised.value.figures == (figures,)


def test_a_server_that_did_not_name_everything_leaves_the_bake_incomplete():
    incomplete = bake(server_keys=("c", "d"))
    figures = sweep_figures(incomplete, [], FARM)
    with pytest.raises(IncompleteError) as raised:
        require_complete(incomplete, [], ["start decode: ended with code 1", "kernel x has no problem"], figures)
    assert str(raised.value) == (
        "2 kernels are cached, but the server's list is incomplete: "
        "start decode: ended with code 1\nkernel x has no problem"
    )


def test_a_complete_bake_passes():
    complete = bake(LAUNCHED, server_keys=("b",))
    require_complete(complete, [PROBLEM], [], sweep_figures(complete, [PROBLEM], FARM))


@pytest.mark.parametrize(
    ("problems", "server_keys", "origins"),
    [
        ((LAUNCHED,), None, "16 M of 1 problems need 2 kernels"),
        ((), ("c",), "7 problems that the server asked for need 1 kernels"),
        ((LAUNCHED,), ("c",), "16 M of 1 problems and 7 problems that the server asked for need 3 kernels"),
    ],
    ids=["rules", "server", "both"],
)
def test_the_summary_names_who_needs_the_kernels(
    problems: tuple[ProblemKernels, ...], server_keys: tuple[str, ...] | None, origins: str
):
    this_bake = bake(*problems, server_keys=server_keys)
    figures = sweep_figures(this_bake, [PROBLEM] * len(problems), FARM)
    summary = sweep_summary(this_bake, figures, None if server_keys is None else 7)
    assert summary == f"{origins}: {figures.compiled} compiled in 2.0 s, 0 reused"
