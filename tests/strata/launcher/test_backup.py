"""A copy of what processes keep, taken while they stand still."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.core.errors import Conflict
from strata.launcher.backup import back_up, frozen, started_by
from strata.launcher.local_state import Shape, note
from tests.waits import until

COUNTS = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(500)"])
n = 0
while True:
    n += 1
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(f"{n} {child.pid}")
    os.replace(sys.argv[1] + ".new", sys.argv[1])
    time.sleep(0.001)
"""


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Yields a process with a child, which counts in the file `counts`."""
    with subprocess.Popen([sys.executable, "-c", COUNTS, str(tmp_path / "counts")]) as process:
        until("the first count", (tmp_path / "counts").exists)
        yield process
        for pid in (*started_by(process.pid), process.pid):
            os.kill(pid, signal.SIGKILL)


def count(folder: Path) -> int:
    return int((folder / "counts").read_text().split()[0])


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_processes_stand_still_in_the_block_and_go_on_after_an_error(
    tmp_path: Path, counter: subprocess.Popen[bytes]
) -> None:
    (child,) = started_by(counter.pid)
    counts = list[int]()

    def copy() -> None:
        with frozen(lambda: [counter.pid, *started_by(counter.pid)]):
            assert state(counter.pid) == state(child) == "T"
            counts.extend([count(tmp_path), count(tmp_path)])
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        copy()
    assert counts[0] == counts[1]
    until("another count", lambda: count(tmp_path) > counts[0])
    assert state(child) != "T"


def test_a_process_that_appears_meanwhile_stands_still_too(tmp_path: Path, counter: subprocess.Popen[bytes]) -> None:
    (child,) = started_by(counter.pid)
    asked: list[list[int]] = []

    def pids() -> list[int]:
        asked.append([counter.pid] if not asked else [counter.pid, child])
        return asked[-1]

    with frozen(pids):
        assert state(child) == "T"
    assert len(asked) == 3


def topology(folder: Path) -> Path:
    """Makes the folders of a topology without processes."""
    (folder / "state" / "redis").mkdir(parents=True)
    (folder / "runs" / "r1").mkdir(parents=True)
    (folder / "runs" / "r1" / "run.json").write_text("{}")
    for name in ("redis/aof", "launcher.lock", "removable"):
        (folder / "state" / name).write_text(name)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "state" / "redis" / "redis.sock"))
    note(folder / "state", Shape(str(folder / "runs"), 2, (3, 1)))
    return folder / "state"


def test_state_and_results_are_copied_without_what_is_of_the_processes(tmp_path: Path) -> None:
    shape = back_up(topology(tmp_path), list, tmp_path / "copies" / "first")
    assert (shape.edges, shape.devices_per_agent) == (2, (3, 1))
    copied = {str(path.relative_to(tmp_path / "copies")) for path in (tmp_path / "copies").rglob("*") if path.is_file()}
    assert copied == {"first/state/redis/aof", "first/state/topology.json", "first/runs/r1/run.json"}


def test_a_backup_replaces_no_other_and_needs_a_topology(tmp_path: Path) -> None:
    state = topology(tmp_path)
    back_up(state, list, tmp_path / "first")
    with pytest.raises(Conflict, match="is there already"):
        back_up(state, list, tmp_path / "first")
    with pytest.raises(Conflict, match="holds no state of a local topology"):
        back_up(tmp_path, list, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_of_a_copy_that_fails_nothing_is_left(tmp_path: Path) -> None:
    state = topology(tmp_path)
    note(state, Shape(str(tmp_path / "gone"), 1, (1,)))
    with pytest.raises(Exception, match="gone"):
        back_up(state, list, tmp_path / "first")
    assert not [path for path in tmp_path.iterdir() if "first" in path.name]
