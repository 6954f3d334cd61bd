"""What goes wrong on a machine, and what is kept all the same. The real deep_gemm, the fake nvcc."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import pytest

from pipeline.deepgemm.cubin import check_cubin
from pipeline.deepgemm.memo import package_folder
from tests.conftest import Workplace
from tests.fake_toolkit import cubin, make_toolkit


def wait_for_compiles(log: Path, number: int) -> None:
    """Return once the fake nvcc has finished that many kernels."""
    end_s = time.monotonic() + 120
    while time.monotonic() < end_s:
        if log.exists() and len(log.read_text().splitlines()) >= number:
            return
        time.sleep(0.02)
    raise AssertionError(f"no {number} kernels in {log} after 120 s")


def test_no_nvcc_where_the_recipe_says_it_is(workplace: Workplace):
    done = workplace.run(f"toolkit.cuda_home={workplace.folder}")
    assert done.returncode == 3
    assert "toolkit.cuda_home names no compiler" in done.stderr
    assert workplace.report["status"] == "failed"


def test_no_c_compiler(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    done = workplace.run(f"toolkit.cuda_home={toolkit.home}", env={"PATH": str(workplace.folder), "CC": ""})
    assert done.returncode == 3
    assert "no C compiler" in done.stderr
    assert "apt-get install gcc" in done.stderr


def test_an_nvcc_too_old_for_the_target_is_refused_before_any_work(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda", release="12.8")
    done = workplace.run("target=b200", f"toolkit.cuda_home={toolkit.home}")
    assert done.returncode == 3
    assert "needs nvcc 12.9 or newer" in done.stderr
    assert not toolkit.compiled


def test_an_output_that_cannot_be_made(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    (workplace.folder / "file").write_text("")
    done = workplace.run(f"toolkit.cuda_home={toolkit.home}", f"output.dir={workplace.folder / 'file' / 'out'}")
    assert done.returncode == 3
    assert "output.dir: cannot make" in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_store_that_is_not_writable(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    (workplace.folder / "store").mkdir(mode=0o500)
    done = workplace.run(f"toolkit.cuda_home={toolkit.home}")
    assert done.returncode == 3
    assert "is not writable" in done.stderr


def test_a_disk_too_full_for_the_estimate(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    done = workplace.run(f"toolkit.cuda_home={toolkit.home}", "sweep.bytes_per_kernel=1000000000000000")
    assert done.returncode == 3
    assert "this run may need" in done.stderr
    assert not toolkit.compiled


def test_an_arena_above_the_memory_limit_is_refused_before_allocating(workplace: Workplace):
    done = workplace.run("device.memory_limit_bytes=1000")
    assert done.returncode == 3
    assert "device.memory_limit_bytes is 1000" in done.stderr


@pytest.mark.slow
def test_a_kernel_that_nvcc_rejects_does_not_take_the_others_with_it(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda", reject="transpose_fp32")
    done = workplace.run(f"toolkit.cuda_home={toolkit.home}")
    assert done.returncode == 4
    sweep = workplace.report["sweep"]
    assert sweep["failed"] == sweep["missing"] == len(sweep["errors"]) > 0
    assert all("rejected by the fake nvcc" in message for message in sweep["errors"].values())
    assert all(key.startswith("transpose_fp32") for key in sweep["errors"])
    assert len(workplace.entries) == sweep["keys"] - sweep["failed"] > 0

    make_toolkit(workplace.folder / "cuda")
    again = workplace.run(f"toolkit.cuda_home={toolkit.home}")
    assert again.returncode == 0
    assert workplace.report["sweep"]["compiled"] == sweep["failed"], "only what had failed is compiled"


@pytest.mark.slow
@pytest.mark.parametrize("ended_by", [signal.SIGINT, signal.SIGKILL])
def test_a_run_ended_in_the_middle_loses_at_most_the_kernels_in_flight(workplace: Workplace, ended_by: signal.Signals):
    toolkit = make_toolkit(workplace.folder / "cuda", delay_s=0.5)
    child = workplace.start(f"toolkit.cuda_home={toolkit.home}", "sweep.jobs=2")
    wait_for_compiles(toolkit.log, 3)
    child.send_signal(ended_by)
    child.communicate(timeout=60)
    assert child.returncode == (130 if ended_by is signal.SIGINT else -signal.SIGKILL)
    # What is published at this moment, if anything, is whole.
    assert not [fault for entry in workplace.entries if (fault := check_cubin(entry / "kernel.cubin", 90))]

    # Compilers of a killed run finish on their own; they are not part of the next run's count.
    time.sleep(1.0)
    before = len(toolkit.compiled)
    make_toolkit(workplace.folder / "cuda")
    again = workplace.run(f"toolkit.cuda_home={toolkit.home}", "sweep.jobs=2")
    assert again.returncode == 0, again.stdout + again.stderr
    sweep = workplace.report["sweep"]
    assert sweep["reused"] >= 2
    assert sweep["compiled"] == len(toolkit.compiled) - before == sweep["keys"] - sweep["reused"]
    assert not list((workplace.folder / "store" / "scratch").glob("nvcc-*")), "the killed run's folders are gone"


@pytest.mark.slow
def test_two_runs_at_once_on_one_output_compile_each_kernel_once(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda", delay_s=0.3)
    runs = [workplace.start(f"toolkit.cuda_home={toolkit.home}", "sweep.jobs=2") for _ in range(2)]
    outputs = [child.communicate(timeout=300) for child in runs]
    assert [child.returncode for child in runs] == [0, 0], outputs
    assert len(toolkit.compiled) == len(set(toolkit.compiled)) == len(workplace.entries)


@pytest.mark.slow
def test_what_was_damaged_is_found_by_verify_and_mended_by_the_next_run(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    choice = f"toolkit.cuda_home={toolkit.home}"
    assert workplace.run(choice).returncode == 0
    stub, torn, foreign, lost, *good = workplace.entries
    (stub / "kernel.cubin").write_text("PREHEAT-STUB\nkernel.cu\n")
    (torn / "kernel.cubin").write_bytes(cubin(90)[:-10])
    (foreign / "kernel.cubin").write_bytes(cubin(100))
    shutil.rmtree(lost)
    kept = {entry.name: (entry / "kernel.cubin").stat().st_ino for entry in good}

    checked = workplace.run(choice, "mode=verify")
    assert checked.returncode == 5
    for expected in ("is a stub", "is truncated", "is for sm_100", f"{lost.name} is not in the cache"):
        assert expected in checked.stderr

    mended = workplace.run(choice)
    assert mended.returncode == 0, mended.stdout
    sweep = workplace.report["sweep"]
    assert sweep["compiled"] == 0, "the store had them"
    assert (sweep["published"], sweep["kept"]) == (1, len(good))
    assert sorted(sweep["replaced"]) == sorted(entry.name for entry in (stub, torn, foreign))
    assert {
        entry.name: (entry / "kernel.cubin").stat().st_ino for entry in workplace.entries if entry.name in kept
    } == kept


@pytest.mark.slow
def test_a_stranger_in_the_cache_is_a_fault(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    assert workplace.run(f"toolkit.cuda_home={toolkit.home}").returncode == 0
    (workplace.entries[0] / "kernel.ptx").write_text("")
    checked = workplace.run(f"toolkit.cuda_home={toolkit.home}", "mode=verify")
    assert checked.returncode == 5
    assert "does not belong here" in checked.stderr


def test_verify_of_nothing_says_to_bake_first(workplace: Workplace):
    done = workplace.run("mode=verify")
    assert done.returncode == 2
    assert "bake it first" in done.stderr


@pytest.mark.slow
def test_a_damaged_store_entry_is_compiled_again(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    assert workplace.run(f"toolkit.cuda_home={toolkit.home}").returncode == 0
    damaged = sorted((workplace.folder / "store" / "kernels").rglob("*.cubin"))[0]
    damaged.write_bytes(b"")
    shutil.rmtree(workplace.output)
    assert workplace.run(f"toolkit.cuda_home={toolkit.home}").returncode == 0
    assert workplace.report["sweep"]["compiled"] == 1


def test_a_place_without_the_library_is_named(workplace: Workplace):
    done = workplace.run(f"toolkit.deep_gemm={workplace.folder}")
    assert done.returncode == 3
    assert f"toolkit.deep_gemm={workplace.folder} holds no package deep_gemm" in done.stderr


def test_a_library_without_a_function_leaves_the_run_incomplete_and_the_rest_cached(workplace: Workplace):
    toolkit = make_toolkit(workplace.folder / "cuda")
    real = package_folder()
    old = workplace.folder / "old" / "deep_gemm"
    old.mkdir(parents=True)
    for part in real.iterdir():
        (old / part.name).symlink_to(part)
    (old / "__init__.py").unlink()
    (old / "__init__.py").write_text((real / "__init__.py").read_text() + "\ndel m_grouped_fp8_gemm_nt_contiguous\n")
    done = workplace.run(f"toolkit.cuda_home={toolkit.home}", f"toolkit.deep_gemm={old.parent}")
    assert done.returncode == 6, done.stderr
    assert "has no m_grouped_fp8_gemm_nt_contiguous" in done.stderr
    assert workplace.report["status"] == "incomplete"
    assert len(workplace.entries) == workplace.report["sweep"]["keys"] > 0
