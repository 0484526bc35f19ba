"""CPUs, memory and processes that this process may use: what the machine has, less what its container allows.

A container, a batch system or `systemd` limits processes by control groups (cgroups, version 1 or 2) and by the CPUs on
which they may run; `os.cpu_count()` and /proc/meminfo know of neither. The limits of all groups above hold too.

Source: the Linux kernel's documentation, admin-guide/cgroup-v1 and admin-guide/cgroup-v2.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_NO_LIMIT = 2**60
"""Version 1 writes the largest number of pages where no limit is set."""


@dataclass(frozen=True)
class _Group:
    """A control group of this process, or one above it, of one version."""

    folder: Path
    v2: bool

    def number(self, v2: str, v1: str) -> int | None:
        """The number in a file of this group, None without a limit."""
        with suppress(OSError, ValueError):
            found = int((self.folder / (v2 if self.v2 else v1)).read_text(encoding="ascii").split()[0])
            return found if 0 <= found < _NO_LIMIT else None
        return None

    def table(self, v2: str, v1: str) -> dict[str, int]:
        """The numbers in a file of lines `NAME NUMBER`."""
        with suppress(OSError, ValueError):
            rows = (self.folder / (v2 if self.v2 else v1)).read_text(encoding="ascii").splitlines()
            return {name: int(number) for name, number in map(str.split, rows)}
        return {}


def cpus() -> int:
    """Returns the number of CPUs that this process may use at once, at least 1; part of one counts as one."""
    try:
        allowed = len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        allowed = os.cpu_count() or 1
    return max(1, math.ceil(min([allowed, *_quotas()])))


def cpu_quota() -> float | None:
    """Returns the CPU seconds a second that the container of this process may take, None without a limit."""
    return min(_quotas(), default=None)


def cpu_used_s() -> float | None:
    """Returns the CPU seconds that all processes of this process' container have taken, None if it is not known."""
    for group in _groups("cpuacct"):
        if group.v2:
            used = group.table("cpu.stat", "").get("usage_usec")
            return None if used is None else used / 1e6
        taken = group.number("", "cpuacct.usage")
        return None if taken is None else taken / 1e9
    return None


def memory_bytes() -> int | None:
    """Returns the memory of the machine or, if it is less, of this process' container; None if neither is known."""
    return _least(_of_machine("SC_PHYS_PAGES"), memory_limit())


def memory_limit() -> int | None:
    """Returns the bytes of memory that the container of this process may take, None without a limit."""
    return _least(*(group.number("memory.max", "memory.limit_in_bytes") for group in _groups("memory")))


def available_bytes() -> int | None:
    """Returns the memory that this process and others of its container may still take, None if it is not known.

    Caches of files count as free, since the kernel gives them back.
    """
    return _least(_free_of_machine(), *map(_free_of, _groups("memory")))


def open_processes() -> int | None:
    """Returns how many more processes and threads the container of this process may start, None without a limit."""
    rooms = []
    for group in _groups("pids"):
        most, taken = group.number("pids.max", "pids.max"), group.number("pids.current", "pids.current")
        rooms.append(None if most is None or taken is None else max(most - taken, 0))
    return _least(*rooms)


def n_killed() -> int:
    """Returns how many processes the kernel has ended in this process' container, because its memory ran out."""
    counts = (group.table("memory.events", "memory.oom_control").get("oom_kill", 0) for group in _groups("memory"))
    return max(counts, default=0)


def _free_of(group: _Group) -> int | None:
    most = group.number("memory.max", "memory.limit_in_bytes")
    taken = group.number("memory.current", "memory.usage_in_bytes")
    if most is None or taken is None:
        return None
    table, prefix = group.table("memory.stat", "memory.stat"), "" if group.v2 else "total_"
    cached = sum(table.get(f"{prefix}{kind}_file", 0) for kind in ("active", "inactive"))
    return max(most - taken + cached, 0)


def _quotas() -> Iterator[float]:
    """The CPU seconds a second that each group may take."""
    for group in _groups("cpu"):
        with suppress(OSError, ValueError):
            if group.v2:
                quota, period = (group.folder / "cpu.max").read_text(encoding="ascii").split()
            else:
                quota, period = ((group.folder / f"cpu.cfs_{part}_us").read_text() for part in ("quota", "period"))
            if int(quota) > 0:
                yield int(quota) / int(period)


def _groups(controller: str) -> Iterator[_Group]:
    """The control groups of this process that can be seen, from the innermost one up; of either version."""
    with suppress(OSError, ValueError, IndexError):
        paths = dict(_paths())
        for mount in _mounts():
            path = paths.get("" if mount.v2 else controller)
            if path is not None and (mount.v2 or controller in mount.controllers):
                yield from _upwards(mount, path)


@dataclass(frozen=True)
class _Mount:
    root: str
    folder: Path
    v2: bool
    controllers: frozenset[str]


def _mounts() -> Iterator[_Mount]:
    """Where control groups are mounted."""
    for line in (_PROC / "self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split()[:3]
        if kind in ("cgroup", "cgroup2"):
            root, folder = before.split()[3:5]
            yield _Mount(root, Path(folder), kind == "cgroup2", frozenset(options.split(",")))


def _paths() -> Iterator[tuple[str, str]]:
    """The path of this process' group by controller; that of version 2 by an empty name."""
    for line in (_PROC / "self/cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _upwards(mount: _Mount, path: str) -> Iterator[_Group]:
    """A group and those above it, as far as they are mounted; where it lies outside, as in a container, the mount."""
    inside = os.path.relpath(path, mount.root)
    folder = mount.folder if inside.startswith("..") else mount.folder / inside
    while True:
        yield _Group(folder, mount.v2)
        if folder == mount.folder or folder == folder.parent:
            return
        folder = folder.parent


def _free_of_machine() -> int | None:
    table = _meminfo()
    return table["MemAvailable"] if "MemAvailable" in table else _of_machine("SC_AVPHYS_PAGES")


def _meminfo() -> Mapping[str, int]:
    """Bytes by name, empty on systems without /proc."""
    with suppress(OSError, ValueError, IndexError):
        rows = (line.split(":", 1) for line in (_PROC / "meminfo").read_text(encoding="ascii").splitlines())
        return {name: 1024 * int(rest.split()[0]) for name, rest in rows}
    return {}


def _of_machine(name: str) -> int | None:
    pages: Callable[[str], int] = os.sysconf
    with suppress(ValueError, OSError):
        return pages("SC_PAGE_SIZE") * pages(name)
    return None


def _least(*amounts: int | None) -> int | None:
    return min((amount for amount in amounts if amount is not None), default=None)
