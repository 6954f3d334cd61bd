from pathlib import Path

import pytest

from pipeline.deepgemm.discovery import Discovery, ProblemKernels
from pipeline.deepgemm.memo import package_folder, remembered
from pipeline.engine.errors import HostError

FOUND = Discovery((ProblemKernels(((1, 16, ("gemm.a", "transpose.b")),), 16),), seconds=0.5, peak_bytes=1)


def test_a_missing_package_is_named_with_the_command_that_installs_it():
    with pytest.raises(HostError, match="no_such_package is not installed; pip install"):
        package_folder("no_such_package")


def test_a_discovery_is_made_once_and_read_back_the_same(tmp_path: Path):
    made: list[Path] = []

    def discover(cache: Path) -> Discovery:
        made.append(cache)
        (cache / "cache" / "gemm.a").mkdir(parents=True)
        return FOUND

    first = remembered(tmp_path, "digest", discover)
    second = remembered(tmp_path, "digest", discover)
    assert len(made) == 1
    assert (first.is_new, second.is_new) == (True, False)
    assert first.discovery == second.discovery == FOUND
    assert (second.stub_cache / "cache" / "gemm.a").is_dir()


def test_a_discovery_that_fails_leaves_nothing_to_be_remembered(tmp_path: Path):
    def fail(cache: Path) -> Discovery:
        cache.mkdir(parents=True)
        raise RuntimeError("deep_gemm crashed")

    with pytest.raises(RuntimeError):
        remembered(tmp_path, "digest", fail)
    assert remembered(tmp_path, "digest", lambda cache: (cache.mkdir(parents=True), FOUND)[1]).is_new
