"""The checks of `strata doctor` that concern the host: what this user and this container may take of it."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from shared.core.errors import StrataError
from shared.core.locks import lock
from shared.core.os_errors import FOLDERS, check_writable, refusals
from shared.core.proxies import proxy_of
from shared.runtime import host_limits
from shared.runtime.memory import FORK_SERVER_BYTES, PROCESS_BYTES, of_limit
from strata.launcher import home
from strata.launcher.environment import MIN_FILES, loopback

State = Literal["ok", "warn", "fail"]
_MIN_DISK = 2e9
_SMALLEST = 3  # processes: a cloud, an edge and an agent
_FEW_FILES, _FEW_PROCESSES, _SHORT_FILE = 256, 64, 2**30
_RELEASED = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Check:
    """One row of the table: what was checked, its state, what was found, and what to do if it is not ok."""

    name: str
    state: State
    found: str
    todo: str = ""


def check_host(runs_dir: Path) -> Iterator[Check]:
    """All checks of this host; `runs_dir` is the folder of results."""
    yield cores()
    yield memory()
    yield folder("results", runs_dir, locks=False)
    yield folder("state", home.folder())
    yield cache()
    yield folder("temporary files", Path(tempfile.gettempdir()))
    yield loopback_address()
    yield open_files()
    yield from limits()
    yield from proxies()
    yield from clock()


def cores() -> Check:
    """Check the number of CPUs that may be used: each trains one agent at a time."""
    count, there = host_limits.cpus(), os.cpu_count() or 1
    found = str(count) if count == there else f"{count} of the machine's {there}"
    if count > 1:
        return Check("cores", "ok", f"{found}, for as many agents at once")
    return Check("cores", "warn", found, "agents train one after another; more cores train more at once")


def memory() -> Check:
    """Check the memory that is free here: the forked processes share some, and take some each."""
    total, free = host_limits.memory_bytes(), host_limits.available_bytes()
    if total is None or free is None:
        return Check("memory", "warn", "unknown on this system", f"each process takes {PROCESS_BYTES / 1e6:.0f} MB")
    n = max(int((free - FORK_SERVER_BYTES) / PROCESS_BYTES), 0)
    found = f"{free / 1e9:.2f} of {total / 1e9:.2f} GB free{of_limit()}, for about {n} processes"
    if n >= 2 * _SMALLEST:
        return Check("memory", "ok", found)
    return Check("memory", "warn" if n >= _SMALLEST else "fail", found, "allow more memory, or use fewer agents")


def folder(name: str, path: Path, *, locks: bool = True) -> Check:
    """Check that a folder can be written or made, has locks where it needs them, and has space left."""
    try:
        check_writable(path)
        there = next(each for each in (path.resolve(), *path.resolve().parents) if each.exists())
        if locks:
            _check_locks(there)
        free = shutil.disk_usage(there).free
    except StrataError as error:
        return Check(name, "fail", error.detail, FOLDERS)
    found = f"{path}: {free / 1e9:.1f} GB free"
    if free >= _MIN_DISK:
        return Check(name, "ok", found)
    return Check(name, "warn", found, "free some space: the state and results of a run may take gigabytes")


def cache() -> Check:
    """Check the folder of unpacked data sets."""
    try:
        return folder("cache", home.cache_folder())
    except StrataError as error:
        return Check("cache", "fail", error.detail, FOLDERS)


def _check_locks(there: Path) -> None:
    with refusals(there), tempfile.NamedTemporaryFile(dir=there, prefix=".strata-doctor-") as file:
        lock(file.fileno(), there)


def loopback_address() -> Check:
    """Check how processes of this machine reach each other."""
    try:
        address = loopback()
    except StrataError as error:
        return Check("loopback", "fail", error.detail, "bring the interface lo up")
    return Check("loopback", "ok", address if ":" not in address else f"{address}; this machine has no IPv4")


def open_files() -> Check:
    """Check how many files a process may open; the tiers raise their own limit as far as they may."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= _FEW_FILES:
        return Check("open files", "ok", "no limit" if hard == resource.RLIM_INFINITY else str(hard))
    state: State = "fail" if hard < MIN_FILES else "warn"
    return Check("open files", state, f"no more than {hard} in a process", "raise it: `ulimit -n`, LimitNOFILE=")


def limits() -> Iterator[Check]:
    """Findings about limits of processes and of the size of files; none where they are high enough."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    rooms = [room for room in (host_limits.open_processes(), soft if soft >= 0 else None) if room is not None]
    if rooms and min(rooms) < _FEW_PROCESSES:
        todo = "raise `ulimit -u`, or the container's limit (pids)"
        yield Check("processes", "warn", f"no more than {min(rooms)} processes and threads", todo)
    size, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= size < _SHORT_FILE:
        yield Check("file size", "warn", f"files of no more than {size / 1e6:.1f} MB", "raise it: `ulimit -f`")


def proxies() -> Iterator[Check]:
    """Findings about variables that name a proxy which cannot be used for a cloud on another machine."""
    for scheme in ("http", "https"):
        try:
            proxy_of(f"{scheme}://cloud.invalid")
        except StrataError as error:
            yield Check(f"proxy ({scheme})", "warn", error.detail, "needed only for a cloud on another machine (--url)")


def clock() -> Iterator[Check]:
    """A finding if the clock is in the past."""
    now = datetime.fromtimestamp(time.time(), UTC)
    if now < _RELEASED:
        todo = "set it: certificates do not hold yet, and runs are sorted by it"
        yield Check("clock", "warn", f"{now:%Y-%m-%d %H:%M}, before StrataFL was released", todo)
