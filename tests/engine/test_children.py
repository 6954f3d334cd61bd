from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pipeline.engine.children import Children
from pipeline.engine.errors import Interrupted

TIMEOUT_S = 10.0
BURN = "import time\nwhile time.process_time() < 0.25: pass"


def shell(children: Children, script: str, cwd: Path) -> subprocess.Popen[str]:
    return children.start(
        ["sh", "-c", script], cwd=cwd, env=dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )


def first_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def close(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    child.stdout.close()


def is_alive(pid: int) -> bool:
    """Whether the process can still do something; one that waits for its parent to collect it cannot."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def is_gone_soon(pid: int) -> bool:
    until_s = time.monotonic() + TIMEOUT_S
    while is_alive(pid) and time.monotonic() < until_s:
        time.sleep(0.01)
    return not is_alive(pid)


@pytest.fixture
def children() -> Children:
    return Children()


def test_stop_ends_a_sleeping_child_and_what_it_started(children: Children, tmp_path: Path):
    child = shell(children, "sleep 60 & echo $!; wait", tmp_path)
    grandchild = int(first_line(child))
    assert is_alive(child.pid)
    assert is_alive(grandchild)
    children.stop()
    with pytest.raises(Interrupted, match="interrupted; what was finished is kept"):
        children.wait(child)
    close(child)
    assert is_gone_soon(child.pid)
    assert is_gone_soon(grandchild)


def test_stop_with_kill_ends_a_child_that_ignores_the_polite_signal(children: Children, tmp_path: Path):
    child = shell(children, "trap '' TERM; echo ready; while :; do sleep 0.05; done", tmp_path)
    assert first_line(child) == "ready"
    children.stop()
    time.sleep(0.2)
    assert is_alive(child.pid)
    children.stop(kill=True)
    with pytest.raises(Interrupted):
        children.wait(child)
    close(child)
    assert child.returncode == -signal.SIGKILL


def test_stop_ends_every_child(children: Children, tmp_path: Path):
    several = [shell(children, "echo ready; exec sleep 60", tmp_path) for _ in range(3)]
    assert [first_line(child) for child in several] == ["ready"] * 3
    children.stop()
    for child in several:
        with pytest.raises(Interrupted):
            children.wait(child)
        close(child)
        assert child.returncode == -signal.SIGTERM


def test_none_can_be_started_after_stop(children: Children, tmp_path: Path):
    children.stop()
    assert children.stopped
    with pytest.raises(Interrupted):
        shell(children, "touch started", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_stop_twice_is_harmless(children: Children):
    children.stop()
    children.stop(kill=True)
    assert children.stopped


def test_stop_does_not_touch_a_child_that_has_ended(children: Children, tmp_path: Path):
    child = shell(children, "exit 0", tmp_path)
    children.wait(child)
    close(child)
    children.stop()
    assert child.returncode == 0


def test_a_child_runs_in_the_folder_and_environment_that_it_was_given(children: Children, tmp_path: Path):
    child = children.start(
        ["sh", "-c", 'echo "$PWD $ONLY ${HOME-unset}"'],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "ONLY": "this"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert first_line(child) == f"{tmp_path} this unset"
    children.wait(child)
    close(child)


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 3", 3), ("kill -KILL $$", -9)])
def test_wait_tells_the_exit_code_or_the_signal(children: Children, tmp_path: Path, script: str, code: int):
    child = shell(children, script, tmp_path)
    assert children.wait(child).returncode == code
    close(child)


def test_cpu_seconds_of_the_whole_tree_are_counted(children: Children, tmp_path: Path):
    child = shell(children, f'"{sys.executable}" -S -c "{BURN}"; true', tmp_path)
    ended = children.wait(child)
    close(child)
    assert ended.returncode == 0
    assert 0.2 < ended.cpu_s < TIMEOUT_S


def test_a_sleeping_child_costs_almost_no_cpu_seconds(children: Children, tmp_path: Path):
    child = shell(children, "sleep 0.3", tmp_path)
    ended = children.wait(child)
    close(child)
    assert ended.cpu_s < 0.2


def test_check_passes_until_stop_and_raises_after(children: Children):
    children.check()
    children.stop()
    with pytest.raises(Interrupted, match="run the same command again"):
        children.check()


def test_a_pause_ends_early_at_an_interrupt(children: Children):
    children.pause(0.01)
    timer = threading.Timer(0.1, children.stop)
    timer.start()
    started_s = time.monotonic()
    with pytest.raises(Interrupted):
        children.pause(60)
    timer.join()
    assert time.monotonic() - started_s < TIMEOUT_S
