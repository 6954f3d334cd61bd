from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.engine.scratch import scratch_folder

HOLD = """
import sys, time
from pathlib import Path
from pipeline.engine.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1]), "work-") as folder:
    print(folder, flush=True)
    time.sleep(60)
"""


def test_a_folder_is_gone_after_use_even_when_the_user_raises(tmp_path: Path):
    folders: list[Path] = []

    def use_and_raise() -> None:
        with scratch_folder(tmp_path, "work-") as folder:
            folders.append(folder)
            (folder / "file").write_text("x")
            raise ValueError("while the folder is in use")

    with pytest.raises(ValueError, match="in use"):
        use_and_raise()
    assert [folder.exists() for folder in folders] == [False]


def test_a_killed_owners_folder_is_removed_and_a_living_owners_is_not(tmp_path: Path):
    project = Path(__file__).parents[2]
    owners = [
        subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], cwd=project, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    try:
        folders = [Path(owner.stdout.readline().strip()) for owner in owners if owner.stdout]
        owners[0].kill()
        owners[0].wait()
        time.sleep(0.05)
        with scratch_folder(tmp_path, "work-"):
            assert [folder.exists() for folder in folders] == [False, True]
        with scratch_folder(tmp_path, "other-"):
            assert folders[1].exists()
    finally:
        for owner in owners:
            owner.kill()
            owner.communicate()
