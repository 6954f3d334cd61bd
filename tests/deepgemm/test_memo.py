import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.deepgemm.discovery import Discovery, ProblemKernels
from pipeline.deepgemm.memo import PACKAGE, child_files, package_folder, remembered
from pipeline.engine.errors import HostError

DISCOVERY = Discovery((ProblemKernels(((1, 16, ("gemm.a", "transpose.b")),), 16),), seconds=0.5, peak_bytes=1)


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(HostError, match="no_such_package is not installed; pip install"):
        package_folder("no_such_package")


def test_a_discovery_is_made_once_and_read_back_the_same(tmp_path: Path):
    caches: list[Path] = []

    def discover(cache: Path) -> Discovery:
        caches.append(cache)
        (cache / "cache" / "gemm.a").mkdir(parents=True)
        return DISCOVERY

    first = remembered(tmp_path, "digest", discover)
    second = remembered(tmp_path, "digest", discover)
    assert len(caches) == 1
    assert (first.is_new, second.is_new) == (True, False)
    assert first.discovery == second.discovery == DISCOVERY
    assert (second.stub_cache / "cache" / "gemm.a").is_dir()


def test_a_discovery_that_fails_leaves_nothing_to_be_remembered(tmp_path: Path):
    def fail(cache: Path) -> Discovery:
        cache.mkdir(parents=True)
        raise RuntimeError("deep_gemm crashed")

    with pytest.raises(RuntimeError):
        remembered(tmp_path, "digest", fail)
    assert remembered(tmp_path, "digest", lambda cache: (cache.mkdir(parents=True), DISCOVERY)[1]).is_new


def test_every_file_of_ours_that_the_worker_loads_is_part_of_the_digest():
    script = (
        "import sys\n"
        "import pipeline.deepgemm.worker, pipeline.deepgemm.launchers\n"
        "print(*(module.__file__ for name, module in sys.modules.items() if name.startswith('pipeline')), sep='\\n')\n"
    )
    command = [sys.executable, "-c", script]
    child = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    loaded = {Path(line) for line in child.stdout.splitlines()}
    # A package's __init__.py holds a docstring only, but for the table of launchers.
    modules = {path for path in loaded if path.name != "__init__.py" or path.parent.name == "launchers"}
    assert modules == set(child_files())
