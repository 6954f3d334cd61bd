from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.engine.children import Children
from pipeline.tuning.tactics import FUSED_MOE, ForeignFile, Tuner, missing_shapes, power_of_two_buckets, shape_of

SHAPES = [(1, 512, 256), (8, 512, 256)]
FP8_KEY = "('fp8_gemm', 'CublasFp8GemmRunner', ((1, {m}, 256), (1, 256, 512), (0,)), (torch.float8_e4m3fn,))"


def key(m: int) -> str:
    return FP8_KEY.format(m=m)


def write(file: Path, tactics: dict[int, int]) -> None:
    content = {"_metadata": {"gpu": "NVIDIA H200"}} | {key(m): ["CublasFp8GemmRunner", t] for m, t in tactics.items()}
    file.write_text(json.dumps(content))


def tuner(folder: Path, script: str, *, limit_s: float = 20.0) -> Tuner:
    """A tuner whose child is `script` instead of the worker: it gets the same job and result paths."""
    package = folder / "fake" / "pipeline" / "tuning"
    package.mkdir(parents=True)
    for init in (package, package.parent):
        (init / "__init__.py").write_text("")
    head = "import json, sys, time\njob = json.load(open(sys.argv[1]))\nfile = job['file']\n"
    (package / "worker.py").write_text(head + script)
    # The child finds this package first: it runs in a folder of its own, and PYTHONPATH decides.
    return Tuner(folder / "tactics.json", Children(), [1, 8], limit_s, {"PATH": "/usr/bin:/bin"}, folder / "fake")


REPORT = "json.dump({result}, open(sys.argv[2], 'w'))\n"
WRITES = f"json.dump({{{key(1)!r}: ['R', 3], {key(8)!r}: ['R', 5]}}, open(file, 'w'))\n"


def report(default: list[float], chosen: list[float], profiled: int = 14, new: int = 2) -> str:
    result = {"profiled": profiled, "new_entries": new, "entries": 2, "default_us": default, "chosen_us": chosen}
    return REPORT.format(result=result)


def test_a_key_names_its_shape_and_only_its_own_operation():
    assert shape_of(key(8), "fp8_gemm") == (8, 512, 256)
    assert shape_of(key(8), "bf16_gemm") is None
    assert shape_of("('bf16_gemm', 'CublasltBf16GemmRunner', ((8, 256), (256, 512)), (8,))", "bf16_gemm") == (
        8,
        512,
        256,
    )
    assert shape_of("_metadata", "fp8_gemm") is None


def test_buckets_are_powers_of_two_and_the_largest_batch():
    assert power_of_two_buckets(12) == [1, 2, 4, 8, 12]
    assert power_of_two_buckets(1) == [1]


def test_tactics_are_saved_and_the_margin_is_reported(tmp_path: Path):
    result = tuner(tmp_path, WRITES + report([10.0, 20.0], [8.0, 15.0])).tune("fp8_gemm", SHAPES)
    assert (result.bad, result.num_entries, result.num_default_kept) == (None, 2, 0)
    assert result.to_json()["margin"] == pytest.approx(1 - 23 / 30, abs=1e-3)
    assert json.loads((tmp_path / "tactics.json").read_text())[key(8)] == ["R", 5]
    assert not list(tmp_path.glob(".tuning-*")), "working folders are gone"


def test_the_default_takes_part_in_the_race_and_may_win(tmp_path: Path):
    result = tuner(tmp_path, WRITES + report([10.0, 20.0], [8.0, 25.0])).tune("fp8_gemm", SHAPES)
    assert result.num_default_kept == 1
    saved = json.loads((tmp_path / "tactics.json").read_text())
    assert (saved[key(1)], saved[key(8)]) == (["R", 3], ["R", -1])
    assert result.chosen_us == 28.0


@pytest.mark.parametrize(
    ("script", "limit_s", "expected"),
    [("import os; os.kill(os.getpid(), 11)\n", 20.0, "ended with code"), ("time.sleep(60)\n", 1.0, "limit 1.0 s")],
)
def test_a_tactic_that_crashes_or_hangs_is_bad_and_the_file_is_as_it_was(
    tmp_path: Path, script: str, limit_s: float, expected: str
):
    write(tmp_path / "tactics.json", {1: 3})
    before = (tmp_path / "tactics.json").read_text()
    result = tuner(tmp_path, script, limit_s=limit_s).tune("fp8_gemm", SHAPES)
    assert result.bad is not None
    assert expected in result.bad
    assert (tmp_path / "tactics.json").read_text() == before


def test_a_file_of_another_gpu_is_refused_with_the_field_and_kept(tmp_path: Path):
    write(tmp_path / "tactics.json", {1: 3})
    before = (tmp_path / "tactics.json").read_text()
    script = REPORT.format(result={"refused": "gpu is 'NVIDIA H100' in the file, 'NVIDIA H200' here", "profiled": 0})
    with pytest.raises(ForeignFile, match="gpu is 'NVIDIA H100'"):
        tuner(tmp_path, script).tune("fp8_gemm", SHAPES)
    assert (tmp_path / "tactics.json").read_text() == before


def test_a_replay_that_profiles_again_or_lacks_a_shape_is_a_fault(tmp_path: Path):
    write(tmp_path / "tactics.json", {1: 3, 8: 5})
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    good = Tuner(tmp_path / "tactics.json", Children(), [1, 8], 20.0)
    assert good.missing("fp8_gemm", SHAPES) == []
    assert good.missing("fp8_gemm", [*SHAPES, (64, 512, 256)]) == [(64, 512, 256)]
    assert "1 of 3 shapes have no tactic" in (good.replay("fp8_gemm", [*SHAPES, (64, 512, 256)]) or "")
    write(tmp_path / "a" / "tactics.json", {1: 3, 8: 5})
    again = tuner(tmp_path / "a", report([], [], profiled=7))
    assert "profiled 7 tactics again" in (again.replay("fp8_gemm", SHAPES) or "")
    write(tmp_path / "b" / "tactics.json", {1: 3, 8: 5})
    assert tuner(tmp_path / "b", report([], [], profiled=0)).replay("fp8_gemm", SHAPES) is None


def test_an_operation_whose_module_is_not_built_is_not_tuned(tmp_path: Path):
    script = REPORT.format(
        result={"not_built": "its module fused_moe_90 is not built here: 247 sources", "profiled": 0}
    )
    result = tuner(tmp_path, script).tune(FUSED_MOE, [(1, 512, 256, 8, 2)])
    assert "247 sources" in (result.bad or "")


def test_the_fused_moe_needs_both_of_its_products_tuned():
    shapes = [(1, 512, 256, 8, 2), (8, 512, 256, 8, 2)]
    gemm1, gemm2 = (
        "('trtllm::fused_moe::gemm{}', 'MoERunner', (({}, 512), (8, 512)), ())".format(n, "{}") for n in (1, 2)
    )
    keys = [gemm1.format(1), gemm1.format(8), gemm2.format(1)]
    assert missing_shapes(FUSED_MOE, shapes, keys) == [shapes[1]]
    assert missing_shapes(FUSED_MOE, shapes, [*keys, gemm2.format(8)]) == []


BY_INTERFACE = """
result = {file} if job["interface"] == "autotune" else {store}
json.dump(result, open(sys.argv[2], 'w'))
"""


def test_a_store_is_filled_beside_the_file_where_flashinfer_has_one(tmp_path: Path):
    file = {"profiled": 14, "new_entries": 2, "entries": 2, "default_us": [10.0, 20.0], "chosen_us": [8.0, 15.0]}
    for folder, entries, expected in ((tmp_path / "new", 2, "2 in autotune_v2's store"), (tmp_path / "old", None, "")):
        folder.mkdir()
        script = WRITES + BY_INTERFACE.format(file=file, store={"profiled": 14, "entries": entries})
        result = tuner(folder, script).tune("fp8_gemm", SHAPES)
        assert (result.num_entries, result.num_stored) == (2, entries)
        assert expected in result.summary()


def store(folder: Path, tactics: dict[int, int]) -> None:
    """A store of autotune_v2 with these entries."""
    entries = folder / "v2" / "0123" / "entries"
    entries.mkdir(parents=True, exist_ok=True)
    for m, tactic in tactics.items():
        (entries / f"{m}.json").write_text(json.dumps({"key": key(m), "runner": "R", "tactic": tactic}))


def test_a_replay_asks_the_store_too_where_there_is_one(tmp_path: Path):
    write(tmp_path / "tactics.json", {1: 3, 8: 5})
    script = BY_INTERFACE.format(file={"profiled": 0}, store={"profiled": 3, "entries": 1})
    replayed = tuner(tmp_path, script)
    assert replayed.replay("fp8_gemm", SHAPES) is None, "no store, so only the file is replayed"
    store(tmp_path, {1: 3})
    assert "1 of 2 shapes are not in autotune_v2's store" in (replayed.replay("fp8_gemm", SHAPES) or "")
    store(tmp_path, {1: 3, 8: 5})
    assert "profiled 3 tactics again (autotune_v2)" in (replayed.replay("fp8_gemm", SHAPES) or "")
