"""Whole runs: the real deep_gemm always, the real nvcc once, the fake one for every target."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pipeline.deepgemm.cubin import read_cubin
from tests.conftest import TINY, Workplace
from tests.fake_toolkit import make_toolkit

TARGET_SM = {"h200": 90, "h100": 90, "h20": 90, "b200": 100}


def test_a_real_bake_is_complete_and_its_second_run_compiles_nothing(workplace: Workplace):
    first = workplace.run()
    assert first.returncode == 0, first.stdout + first.stderr
    report = workplace.report
    assert report["status"] == "ok"
    assert report["sweep"]["compiled"] == report["sweep"]["keys"] == len(workplace.entries) > 5
    assert report["sweep"]["m_values"] == report["verify"]["coverage_m_values"] == 8 * 16 + 2 * 8
    assert report["verify"]["coverage_compiles"] == 0
    assert report["verify"]["cubins_checked"] == len(workplace.entries)
    assert report["verify"]["numerics_checked"] is None, "no GPU here, so nothing may claim to be measured"
    assert report["buffers"]["allocations_after"] == 0
    assert report["buffers"]["arena_bytes"] < report["buffers"]["sum_of_stage_bytes"]
    assert report["forward"]["batch"] == 8
    assert report["forward"]["gemms"] > 0
    assert report["sweep"]["published"] == len(workplace.entries)
    for entry in workplace.entries:
        facts = read_cubin(entry / "kernel.cubin")
        assert facts.sm == 90
        assert len(facts.kernels) == 1
        assert "discovery-" not in (entry / "meta.json").read_text(), "a working folder leaked into the cache"

    second = workplace.run()
    assert second.returncode == 0, second.stdout + second.stderr
    again = workplace.report
    assert again["sweep"]["compiled"] == 0
    assert again["sweep"]["reused"] == report["sweep"]["keys"]
    assert again["sweep"]["discovery_reused"] is True
    assert (again["sweep"]["published"], again["sweep"]["kept"]) == (0, report["sweep"]["keys"])

    checked = workplace.run("mode=verify")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert f"{len(workplace.entries)} kernels in {workplace.output / 'deep_gemm'}" in checked.stdout
    assert workplace.report == again, "verify writes nothing into the output"


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGET_SM)
def test_every_target_bakes_and_verifies_with_the_fake_nvcc(workplace: Workplace, target: str):
    toolkit = make_toolkit(workplace.folder / "cuda")
    done = workplace.run(f"target={target}", f"toolkit.cuda_home={toolkit.home}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert workplace.report["sweep"]["keys"] == len(toolkit.compiled) == len(workplace.entries)
    assert {read_cubin(entry / "kernel.cubin").sm for entry in workplace.entries} == {TARGET_SM[target]}


@pytest.mark.slow
def test_two_gpus_of_one_architecture_with_other_sm_counts_need_other_kernels(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    keys: dict[str, set[str]] = {}
    for target in ("h200", "h100", "h20"):
        out = workplace.folder / target
        done = workplace.run(f"target={target}", f"toolkit.cuda_home={toolkit.home}", f"output.dir={out}")
        assert done.returncode == 0, done.stderr
        keys[target] = {entry.name for entry in (out / "deep_gemm" / "cache").iterdir()}
    assert keys["h200"] == keys["h100"], "same SM count: one bake serves both"
    gemms = {key for key in keys["h20"] if not key.startswith("transpose")}
    assert not gemms & keys["h200"]


def test_a_run_leaves_what_the_design_names(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    done = workplace.run(f"toolkit.cuda_home={toolkit.home}")
    assert done.returncode == 0, done.stderr
    names = {path.name for path in workplace.output.iterdir()}
    assert names == {"deep_gemm", "env.sh", "manifest.json", "recipe.yaml", "report.json"}
    manifest = json.loads((workplace.output / "manifest.json").read_text())
    on_disk = {str(path.relative_to(workplace.output)) for path in workplace.output.rglob("*") if path.is_file()}
    assert set(manifest["files"]) == on_disk - {"manifest.json", "report.json"}
    assert sum(problem["keys"] for problem in manifest["problems"]) >= len(workplace.entries)
    run_dir = Path(workplace.report["run_dir"])
    assert {"run.log", "events.jsonl", "timeline.json", "dag.mmd"} <= {path.name for path in run_dir.iterdir()}
    assert "align --> sweep" in (run_dir / "dag.mmd").read_text()
    bars = [event["name"] for event in json.loads((run_dir / "timeline.json").read_text())["traceEvents"]]
    assert {"plan", "sweep", "verify", "export"} <= set(bars)


def test_env_sh_names_the_cache_from_wherever_it_lies(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    assert workplace.run(f"toolkit.cuda_home={toolkit.home}").returncode == 0
    moved = workplace.folder / "moved here"
    workplace.output.rename(moved)
    script = f'source "{moved}/env.sh" && echo "$SGLANG_DG_CACHE_DIR"'
    shell = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert shell.stdout.strip() == str(moved / "deep_gemm")


@pytest.mark.slow
def test_a_recipe_can_be_replayed_from_its_output(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    assert workplace.run("target=h20", f"toolkit.cuda_home={toolkit.home}").returncode == 0
    command = [*workplace.command()[:2], f"recipe={workplace.output}"]
    again = subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    assert workplace.report["sweep"]["compiled"] == 0
    assert workplace.report["recipe"] == "tiny-single-sglang-h20"


@pytest.mark.slow
def test_the_variables_of_the_caller_do_not_change_the_keys(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    assert workplace.run(f"toolkit.cuda_home={toolkit.home}").returncode == 0
    names = {entry.name for entry in workplace.entries}
    # DG_JIT_WITH_LINEINFO enters DeepGEMM's key; a shell that has it set must not bake another cache.
    other = workplace.folder / "other"
    environment = {"DG_JIT_WITH_LINEINFO": "1", "DG_JIT_CACHE_DIR": "/nonexistent"}
    done = workplace.run(
        f"toolkit.cuda_home={toolkit.home}", f"output.dir={other}", f"store.dir={other}-store", env=environment
    )
    assert done.returncode == 0, done.stderr
    assert {entry.name for entry in (other / "deep_gemm" / "cache").iterdir()} == names


def test_a_recipe_without_deepgemm_problems_says_so_and_ends_well(workplace: Workplace):
    config = json.loads((TINY / "config.json").read_text())
    del config["quantization_config"]
    (workplace.folder / "config.json").write_text(json.dumps(config))
    done = workplace.run(f"model.hf_config={workplace.folder / 'config.json'}", "server.moe_runner_backend=auto")
    assert done.returncode == 0, done.stderr
    sweep = next(stage for stage in workplace.report["stages"] if stage["name"] == "sweep")
    assert sweep["status"] == "skipped"
    assert "no problem of this recipe goes to DeepGEMM" in sweep["reason"]


@pytest.mark.slow
def test_both_adapters_run_the_whole_pipeline(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    for adapter in ("decode_graph", "eager"):
        done = workplace.run(f"adapter={adapter}", f"toolkit.cuda_home={toolkit.home}", "server.tokens_per_request=2")
        assert done.returncode == 0, done.stderr
        stage = next(stage for stage in workplace.report["stages"] if stage["name"] == "adapter")
        assert stage["reason"].startswith(adapter)
        assert workplace.report["buffers"]["allocations_after"] == 0


def test_sizes_and_arguments_with_commas_are_taken_as_they_are_typed(workplace: Workplace):
    command = [*workplace.command()[:2], "model=deepseek", "parallel=tp8", "mode=plan", "plan.explain=4608,7168"]
    command += ["server.args=--cuda-graph-bs 1,2", "plan.format=json"]
    done = subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    (line,) = json.loads(done.stdout)["explain"]
    assert "mlp.gate_up_proj" in line["what"]


def test_the_documented_command_runs_from_any_folder(workplace: Workplace):
    command = [*workplace.command()[:2], "model=deepseek", "parallel=pp4", "mode=plan", "plan.format=json"]
    done = subprocess.run(command, cwd=workplace.folder, capture_output=True, text=True, env=dict(os.environ))
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert len(plan["problems"]) == 6
    assert not list(workplace.folder.iterdir()), "mode=plan must touch nothing"
