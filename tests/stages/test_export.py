from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.deepgemm.compiler import Source
from pipeline.engine.errors import StageError
from pipeline.servers.shared.problems import Kernel, MList, Problem
from pipeline.slots import BAKED, PROOF, TOOLKIT, Baked, Proof
from stages.export import Export
from tests.deepgemm.test_classic_keys import ARGUMENTS, GOLDEN, cache_of, keys_in
from tests.servers.shared.places import Place
from tests.stages.runs import Bench, completed

PROBLEM = Problem(
    kernel=Kernel.DENSE, n=512, k=512, groups=1, m=MList.up_to(16), linears=("linear",), layers=(0,), ranks=(0,)
)
CLASSIC = [Source(key, code, ARGUMENTS) for key, (_, code) in GOLDEN.items()]


def bench_of(folder: Path, sources: Sequence[Source] = CLASSIC) -> Bench:
    """A bench after verify, with two kernels of the classic JIT in the output's cache."""
    cache_of(folder / "out" / "deep_gemm")
    baked = Baked(sources=list(sources), problems=(PROBLEM,))
    return Bench(folder=folder, seeds={TOOLKIT: Place(folder).toolkit, BAKED: baked, PROOF: Proof({PROBLEM.name: 2})})


def manifest(bench: Bench) -> dict[str, Any]:
    return json.loads((bench.places.output / "manifest.json").read_text())


def test_the_output_holds_what_a_server_and_a_later_run_need(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    result = completed(bench.run(Export()))
    output = bench.places.output
    assert {path.name for path in output.iterdir()} == {"deep_gemm", "env.sh", "manifest.json", "recipe.yaml"}
    assert 'export SGLANG_DG_CACHE_DIR="$PREHEAT_WARM_CACHE/deep_gemm"' in (output / "env.sh").read_text()
    assert (output / "recipe.yaml").read_text() == f"# {bench.recipe.name}\n"
    assert result.summary == f"6 files in {output}; source {output}/env.sh before the server"


def test_the_manifest_has_every_file_and_the_keys_that_verify_counted(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.run(Export())
    contents = manifest(bench)
    on_disk = {str(path.relative_to(bench.places.output)) for path in bench.places.output.rglob("*") if path.is_file()}
    assert set(contents["files"]) == on_disk - {"manifest.json"}
    (problem,) = contents["problems"]
    assert (problem["n"], problem["k"], problem["keys"]) == (512, 512, 2)
    assert "relocated_to" not in contents["enters_the_key"]


def test_kernels_of_the_classic_jit_are_renamed_for_the_serving_machine(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    result = completed(bench.run(Export(relocate_to="/srv/deep_gemm")))
    names = keys_in(bench.places.warm_cache)
    assert len(names) == len(GOLDEN)
    assert not set(names) & set(GOLDEN)
    contents = manifest(bench)
    assert contents["enters_the_key"]["relocated_to"] == "/srv/deep_gemm/include"
    assert {f"deep_gemm/cache/{name}/kernel.cubin" for name in names} <= set(contents["files"])
    assert result.summary.endswith(", 2 kernels renamed for /srv/deep_gemm")


def test_a_relocation_that_nothing_needs_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, [Source("sm90_fp8_gemm_1d2d.b72d4c088b78b23036c0f8dbee597559", "code", ARGUMENTS)])
    with pytest.raises(StageError, match=r"export\.relocate_to=/srv/deep_gemm: .*leaves paths out of its keys"):
        bench.run(Export(relocate_to="/srv/deep_gemm"))
    assert {path.name for path in bench.places.output.iterdir()} == {"deep_gemm"}


def test_exporting_again_leaves_what_a_reader_has_open_as_it_was(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    bench.run(Export())
    written = sorted(path for path in bench.places.output.iterdir() if path.is_file())
    # Another name of the same file keeps its content when the file is replaced, and not when it is written over.
    opened = [path.rename(tmp_path / path.name) for path in written]
    for old, path in zip(opened, written, strict=True):
        path.hardlink_to(old)
    before = [path.read_bytes() for path in opened]
    changed = replace(bench.recipe, target=replace(bench.recipe.target, name="other", product="NVIDIA OTHER"))
    Bench(changed, folder=tmp_path, seeds=bench.seeds).run(Export())
    assert [path.read_bytes() for path in opened] == before
    assert [path.read_bytes() == old for path, old in zip(written, before, strict=True)] == [False] * len(written)
    assert not list(bench.places.output.glob(".*")), "no temporary file is left"
