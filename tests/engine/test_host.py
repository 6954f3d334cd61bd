from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.engine.errors import HostError
from pipeline.engine.host import available_bytes, num_cores, require_writable

PETABYTE = 2**50


def test_cores_are_those_that_this_process_may_use():
    before = os.sched_getaffinity(0)
    assert num_cores() == len(before)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert num_cores() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_available_memory_is_above_zero_and_below_what_is_installed():
    installed = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < available_bytes() <= installed


def test_a_missing_folder_is_made(tmp_path: Path):
    require_writable(tmp_path / "a" / "b", key="store.dir", needed_bytes=1)
    assert (tmp_path / "a" / "b").is_dir()


def test_an_existing_folder_is_fine_and_nothing_is_left_in_it(tmp_path: Path):
    require_writable(tmp_path, key="store.dir", needed_bytes=0)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_names_the_key_and_the_cause(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match=r"store\.dir: cannot make .*/file/sub: Not a directory; give a folder"):
        require_writable(tmp_path / "file" / "sub", key="store.dir", needed_bytes=0)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(HostError, match=r"output\.dir: cannot make .*/file"):
        require_writable(tmp_path / "file", key="output.dir", needed_bytes=0)


def test_a_folder_that_this_user_may_not_write_to_is_refused(tmp_path: Path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    if os.access(folder, os.W_OK):
        pytest.skip("this user (root) may write everywhere")
    with pytest.raises(HostError, match=r"output\.dir: .*/locked is not writable"):
        require_writable(folder, key="output.dir", needed_bytes=0)


def test_a_disk_without_room_is_refused_with_both_numbers(tmp_path: Path):
    with pytest.raises(HostError, match=r"store\.dir: .* has \d+ MiB free, this run may need 1073741824 MiB; free"):
        require_writable(tmp_path, key="store.dir", needed_bytes=PETABYTE)
