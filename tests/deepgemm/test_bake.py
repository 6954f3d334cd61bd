"""Bakes with the real deep_gemm on the virtual GPU and the fake nvcc."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.deepgemm.bake import KERNELS_PER_PROBLEM, Bake, Baker
from pipeline.deepgemm.bake_report import sweep_figures
from pipeline.deepgemm.cache import cache_faults
from pipeline.deepgemm.discovery import Discoverer
from pipeline.deepgemm.farm import Farm
from pipeline.deepgemm.store import Store
from pipeline.deepgemm.toolkit import find_toolkit
from pipeline.engine.children import Children
from pipeline.engine.errors import HostError
from pipeline.engine.events import Event, Events, Reporter
from pipeline.places import Places
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.virtual_gpu.build import VirtualGpu, build
from tests.deepgemm.test_translation_unit import one_line
from tests.fake_toolkit import FakeToolkit, cubin, make_toolkit
from tests.servers.recipes import target

H200 = target("h200")
PROBLEM = Problem(
    kernel=Kernel.DENSE, n=512, k=512, groups=1, m=MList.up_to(16), linears=("linear",), layers=(0,), ranks=(0,)
)
ARGUMENTS = ("/x/kernel.cu", "--cubin", "--output-file", "/x/kernel.cubin", "--gpu-architecture=sm_90a")


@pytest.fixture(scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> VirtualGpu:
    return build(H200, cache_dir=tmp_path_factory.mktemp("gpu"))


@pytest.fixture
def cuda(tmp_path: Path) -> FakeToolkit:
    return make_toolkit(tmp_path / "cuda")


def baker(folder: Path, gpu: VirtualGpu, cuda: FakeToolkit, events: list[Event] | None = None) -> Baker:
    """A baker whose store and output lie in `folder`."""
    toolkit = find_toolkit(str(cuda.home))
    places = Places(output=folder / "out", store=folder / "store")
    listener = (lambda event: None) if events is None else events.append
    return Baker(
        discoverer=Discoverer(gpu, toolkit, Children(), places.scratch),
        farm=Farm(toolkit, Store(places.store), Children(), 2, H200.sm),
        places=places,
        on_progress=Reporter(Events(listener), "sweep"),
    )


def server_stubs(folder: Path, keys: Sequence[str]) -> Path:
    """The private cache of a server that asked for these kernels."""
    for number, key in enumerate(keys):
        entry = folder / "cache" / key
        entry.mkdir(parents=True)
        (entry / "kernel.cu").write_text(one_line(number))
        (entry / "kernel.cubin").write_text("\n".join(["PREHEAT-STUB", *ARGUMENTS]))
    return folder


def published_keys(places: Places) -> set[str]:
    return {entry.name for entry in (places.warm_cache / "cache").iterdir()}


def keys(bake: Bake) -> set[str]:
    return {source.key for source in bake.sources}


def test_the_rules_kernels_and_the_servers_are_baked_together_and_told_apart(
    tmp_path: Path, gpu: VirtualGpu, cuda: FakeToolkit
):
    events: list[Event] = []
    this = baker(tmp_path, gpu, cuda, events)
    bake = this.bake([PROBLEM], server_stubs(tmp_path / "server", ["gemm.x", "gemm.y"]))
    assert bake.discovery is not None
    assert bake.discovery.is_new
    rules_keys = set(bake.discovery.discovery.keys)
    assert {source.key for source in bake.rules_sources or []} == rules_keys
    assert [source.key for source in bake.server_sources or []] == ["gemm.x", "gemm.y"]
    assert published_keys(this.places) == keys(bake) == rules_keys | {"gemm.x", "gemm.y"}
    assert sorted(bake.published.added) == sorted(keys(bake))
    assert cache_faults(this.places.warm_cache, H200.sm) == (len(keys(bake)), [])
    counts = [(event.data["what"], event.data["done"], event.data["total"]) for event in events]
    assert counts[-1] == ("kernels", len(keys(bake)), len(keys(bake)))


def test_a_damaged_entry_is_replaced_and_named_and_the_good_ones_are_kept(
    tmp_path: Path, gpu: VirtualGpu, cuda: FakeToolkit
):
    this = baker(tmp_path, gpu, cuda)
    first = this.bake([PROBLEM], None)
    damaged, *good = sorted(published_keys(this.places))
    (this.places.warm_cache / "cache" / damaged / "kernel.cubin").write_bytes(cubin(90)[:-10])
    again = this.bake([PROBLEM], None)
    assert again.discovery is not None
    assert not again.discovery.is_new
    assert (again.compiled.num_compiled, again.compiled.num_reused) == (0, first.compiled.num_compiled)
    assert (again.published.added, again.published.replaced) == ([], [damaged])
    assert sorted(again.published.kept) == good
    figures = sweep_figures(again, [PROBLEM], this.farm)
    assert (figures.published, figures.kept, figures.replaced) == (0, len(good), [damaged])
    assert cache_faults(this.places.warm_cache, H200.sm) == (len(good) + 1, [])


def test_a_kernel_of_both_lists_is_compiled_once_and_published_once(tmp_path: Path, gpu: VirtualGpu, cuda: FakeToolkit):
    this = baker(tmp_path, gpu, cuda)
    bake = this.bake([PROBLEM], None)
    assert bake.discovery is not None
    compiled = list(cuda.compiled)
    both = baker(tmp_path / "both", gpu, cuda).bake([PROBLEM], bake.discovery.stub_cache)
    assert keys(both) == keys(bake)
    assert len(cuda.compiled) == 2 * len(compiled), "another store, so each kernel once more"
    assert len(both.published.added) == len(keys(both))
    assert both.published.kept == [], "what one list added is not counted again for the other"
    figures = sweep_figures(both, [PROBLEM], this.farm)
    assert (figures.rules_only_keys, figures.server_only_keys) == ([], [])


def test_a_rejected_kernel_is_not_published_and_the_others_are(tmp_path: Path, gpu: VirtualGpu, cuda: FakeToolkit):
    make_toolkit(cuda.home, reject="gemm<1>")
    this = baker(tmp_path, gpu, cuda)
    bake = this.bake([], server_stubs(tmp_path / "server", ["gemm.x", "gemm.y", "gemm.z"]))
    assert (bake.discovery, bake.rules_sources) == (None, None)
    assert set(bake.compiled.failed) == {"gemm.y"}
    assert published_keys(this.places) == {"gemm.x", "gemm.z"}


@pytest.mark.parametrize(("key", "place"), [("store.dir", "store"), ("output.dir", "output")])
def test_a_place_that_cannot_be_made_is_named_by_its_key(
    tmp_path: Path, gpu: VirtualGpu, cuda: FakeToolkit, key: str, place: str
):
    (tmp_path / "file").write_text("")
    this = baker(tmp_path, gpu, cuda)
    blocked = replace(this, places=replace(this.places, **{place: tmp_path / "file" / "folder"}))
    with pytest.raises(HostError, match=f"^{key}: cannot make "):
        blocked.require_room(1, 1)


def test_the_room_that_is_asked_for_grows_with_problems_and_bytes(tmp_path: Path, gpu: VirtualGpu, cuda: FakeToolkit):
    this = baker(tmp_path, gpu, cuda)
    this.require_room(3, 1024)
    with pytest.raises(HostError, match=f"this run may need {KERNELS_PER_PROBLEM * 3 * 2**30} MiB"):
        this.require_room(3, 2**50)
