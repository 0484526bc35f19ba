"""A copy of all that a local topology keeps, taken while all its processes stand still.

What the tiers keep belongs together: Redis names files of the cloud and of the edges, and both name states of devices
in the agents' folders. Copied one after another under way, they would be of different rounds. While nothing runs, the
copy is what the tiers would find after a power failure, from which they go on (docs/reliability.md).
"""

from __future__ import annotations

import os
import shutil
import signal
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shared.core.errors import Conflict, DeadlineExceeded
from shared.core.os_errors import refusals
from strata.launcher.local_state import Shape, shape_of

STOP_S = 10.0
"""Longest wait until a process stands still."""
STATE, RUNS = "state", "runs"
"""The folders of a backup: for `strata up --state-dir`, and for its `--runs-dir`."""
OF_THE_PROCESS = frozenset({"launcher.lock", "removable"})
"""Files of the running launcher, which are not copied."""


def back_up(folder: Path, pids: Callable[[], Iterable[int]], into: Path) -> Shape:
    """Copy the state and the results of a topology while its processes stand still; returns its shape.

    Args:
        folder: of the topology.
        pids: its processes; asked again once these stand still, as one may have started another meanwhile.
        into: the backup, which is made.

    Raises:
        Conflict: there is no such topology, or the backup is there already.
        DeadlineExceeded: a process does not stop.
    """
    shape = shape_of(folder)
    if shape is None:
        raise Conflict(f"{folder} holds no state of a local topology")
    if into.exists():
        raise Conflict(f"{into} is there already: a backup gets a folder of its own")
    part = into.with_name(f".{into.name}.part")
    with refusals(part), _removed(part):
        part.mkdir(parents=True)
        with frozen(pids):
            for source, name in ((folder, STATE), (Path(shape.runs_dir), RUNS)):
                shutil.copytree(source, part / name, symlinks=True, ignore=_not_copied)
        os.replace(part, into)
    return shape


@contextmanager
def _removed(part: Path) -> Iterator[None]:
    try:
        yield
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _not_copied(folder: str, names: list[str]) -> set[str]:
    sockets = {name for name in names if stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode)}
    return sockets | (OF_THE_PROCESS & set(names))


@contextmanager
def frozen(pids: Callable[[], Iterable[int]]) -> Iterator[None]:
    """In this block the processes stand still (SIGSTOP); afterwards they go on, however it ends."""
    stopped: list[int] = []
    try:
        while new := [pid for pid in pids() if pid not in stopped]:
            for pid in new:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
                stopped.append(pid)
            for pid in new:
                _wait_until_stopped(pid)
        yield
    finally:
        for pid in reversed(stopped):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _wait_until_stopped(pid: int) -> None:
    ends = time.monotonic() + STOP_S
    while not set(_states(pid)) <= {"T", "t", "Z", "X"}:
        if time.monotonic() > ends:
            raise DeadlineExceeded(f"process {pid} does not stand still after {STOP_S:g} s")
        time.sleep(0.005)


def _states(pid: int) -> Iterator[str]:
    """The states of a process' threads, as letters of proc(5)."""
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with suppress(OSError):
            yield task.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[0]


def started_by(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started."""
    found = list[int]()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text(encoding="ascii").split()):
                found += [child, *started_by(child)]
    return found
