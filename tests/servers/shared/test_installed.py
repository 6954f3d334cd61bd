from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pipeline.deepgemm.toolkit import Toolkit
from pipeline.engine.errors import HostError
from pipeline.servers.sglang.askable import AskableSglang
from pipeline.servers.shared.installed import InstalledServer, build_environment, find_server
from tests.fake_toolkit import make_toolkit
from tests.servers.recipes import ROOT
from tests.servers.shared.places import FakeAskable

SGLANG = AskableSglang()


def python_with(folder: Path, versions: str) -> str:
    """A Python that answers the question with these versions."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\necho \'{{"versions": {versions}, "site": "/site"}}\'\n')
    script.chmod(0o755)
    return str(script)


def test_the_tested_release_is_found_with_its_versions(tmp_path: Path):
    server = find_server(SGLANG, python_with(tmp_path, '{"sglang": "0.5.23", "torch": "2.14.1"}'))
    assert server.version == "0.5.23"
    assert server.versions["torch"] == "2.14.1"
    assert server.python == tmp_path / "python"
    assert server.site_packages == Path("/site")


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ('{"sglang": null}', "has no sglang"),
        ('{"sglang": "0.5.22"}', "has sglang 0.5.22, tested is 0.5.23"),
        ('{"sglang": "0.6.0rc1"}', "has sglang 0.6.0rc1, tested is 0.5.23"),
    ],
)
def test_another_server_is_named_with_the_line_that_installs_the_right_one(tmp_path: Path, versions: str, message: str):
    with pytest.raises(HostError, match=message) as caught:
        find_server(SGLANG, python_with(tmp_path, versions))
    assert "pip install -r requirements-sglang.txt" in str(caught.value)


def test_a_python_that_does_not_run_is_named(tmp_path: Path):
    with pytest.raises(HostError, match="server.python=.*nowhere does not run"):
        find_server(SGLANG, str(tmp_path / "nowhere"))


def test_without_a_python_this_one_is_asked_about_every_distribution():
    with pytest.raises(HostError, match="has no fake-server; .*pip install -r requirements-fake.txt"):
        find_server(FakeAskable(), None)
    server = find_server(FakeAskable(distributions=("numpy", "fake-server"), tested=version_of_numpy()), None)
    assert server.python == Path(sys.executable)
    assert server.versions["fake-server"] is None
    assert (server.site_packages / "numpy").is_dir()


def version_of_numpy() -> tuple[int, int, int]:
    import numpy

    major, minor, patch = numpy.__version__.split(".")[:3]
    return int(major), int(minor), int(patch)


def test_the_requirements_file_names_the_tested_release():
    requirements = (ROOT / SGLANG.requirements).read_text()
    assert SGLANG.tested == (0, 5, 23)
    assert "sglang==0.5.23" in requirements.splitlines()


def test_modules_find_what_a_trimmed_toolkit_lacks_in_the_server_s_wheels(tmp_path: Path):
    home = make_toolkit(tmp_path / "cuda").home
    (home / "include").mkdir(parents=True)
    (home / "include" / "curand.h").touch()
    wheels = tmp_path / "site" / "nvidia" / "cu13"
    for name in ("include/cublas_v2.h", "include/curand.h", "include/cuda.h", "lib/libcublas.so.13"):
        (wheels / name).parent.mkdir(parents=True, exist_ok=True)
        (wheels / name).touch()
    driver = tmp_path / "libcuda.so.1"
    driver.touch()
    toolkit = Toolkit(home / "bin" / "nvcc", home, "text", "the tests")
    server = InstalledServer(Path(sys.executable), tmp_path / "site", "0.5.23", {"sglang": "0.5.23"})
    build_environment(server, toolkit, tmp_path / "links", driver)
    variables = build_environment(server, toolkit, tmp_path / "links", driver)
    include, lib = (Path(variables[name].split(":")[0]) for name in ("CPATH", "LIBRARY_PATH"))
    assert [path.name for path in include.iterdir()] == ["cublas_v2.h"], "the toolkit's own headers stay its own"
    assert {path.name for path in lib.iterdir()} == {"libcuda.so", "libcublas.so"}
