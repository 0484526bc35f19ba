"""CPUs, memory and processes that a container allows, read from copies of what Linux shows of control groups."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from shared.runtime import host_limits

MACHINE = "MemTotal: 24000000 kB\nMemFree: 10000000 kB\nMemAvailable: 20000000 kB\n"
V1_STAT = "cache 60\nactive_file 5\ntotal_active_file 30000000\ntotal_inactive_file 20000000\n"
V2_STAT = "anon 60\nactive_file 30000000\ninactive_file 20000000\nfile 1\n"
NO_LIMIT = 9223372036854771712


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine of 64 CPUs without control groups; returns the folder of its files."""
    monkeypatch.setattr(host_limits, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    write(tmp_path, {"proc/meminfo": MACHINE})
    return tmp_path


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def version_1(host: Path, path: str = "/slurm/job", root: str = "/") -> None:
    folder, kinds = host / "cg", ("memory", "cpu,cpuacct", "pids")
    mounts = (f"3{i} 2 0:3{i} {root} {folder}/{kind} rw - cgroup cgroup rw,{kind}" for i, kind in enumerate(kinds))
    paths = (f"{i}:{kind}:{path}" for i, kind in enumerate(kinds))
    write(host, {"proc/self/mountinfo": "\n".join(mounts), "proc/self/cgroup": "\n".join(paths)})


def version_2(host: Path, path: str = "/pod/container", root: str = "/") -> None:
    mounts = f"1 1 8:1 / / rw - ext4 /dev/vda rw\n30 24 0:26 {root} {host / 'cg'} rw shared:9 - cgroup2 cgroup2 rw\n"
    write(host, {"proc/self/mountinfo": mounts, "proc/self/cgroup": f"0::{path}\n"})


def test_without_control_groups_the_machine_and_the_affinity_count(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (host_limits.cpus(), host_limits.available_bytes()) == (64, 20_480_000_000)
    assert (host_limits.memory_limit(), host_limits.open_processes(), host_limits.n_killed()) == (None, None, 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5})
    assert host_limits.cpus() == 1
    monkeypatch.delattr(os, "sched_getaffinity")
    assert host_limits.cpus() == 64


def test_limits_of_version_1_hold_with_those_of_the_groups_above(host: Path) -> None:
    version_1(host)
    killed, none = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", f"{NO_LIMIT}\n"
    files = {
        "memory/slurm/job/memory.": {"limit_in_bytes": none, "usage_in_bytes": "100\n", "oom_control": killed},
        "memory/slurm/memory.": {"limit_in_bytes": "400000000\n", "usage_in_bytes": "250000000\n", "stat": V1_STAT},
        "memory/memory.": {"limit_in_bytes": none},
        "cpu,cpuacct/slurm/job/cpu.": {"cfs_quota_us": "150000\n", "cfs_period_us": "100000\n"},
        "cpu,cpuacct/slurm/cpu.": {"cfs_quota_us": "-1\n", "cfs_period_us": "100000\n"},
        "pids/slurm/pids.": {"max": "100\n", "current": "60\n"},
    }
    for kind, texts in files.items():
        write(host, {f"cg/{kind}{name}": text for name, text in texts.items()})
    assert (host_limits.memory_limit(), host_limits.memory_bytes()) == (400_000_000, 400_000_000)
    assert host_limits.available_bytes() == 400_000_000 - 250_000_000 + 50_000_000
    assert (host_limits.cpus(), host_limits.open_processes(), host_limits.n_killed()) == (2, 40, 2)


@pytest.mark.parametrize(
    ("path", "root", "folder"),
    [
        ("/pod/container", "/", "cg/pod/container"),
        ("/", "/", "cg"),  # in a namespace of its own
        ("/docker/abc", "/docker/abc", "cg"),  # only its part is mounted
        ("/../../other", "/", "cg"),  # from outside its namespace
    ],
)
def test_limits_of_version_2_are_found_where_it_is_mounted(path: str, root: str, folder: str, host: Path) -> None:
    version_2(host, path, root)
    limits = {"memory.max": "400000000\n", "memory.current": "390000000\n", "memory.stat": V2_STAT}
    limits |= {"memory.events": "low 0\noom 3\noom_kill 1\n", "cpu.max": "50000 100000\n", "pids.max": "max\n"}
    write(host, {f"{folder}/{name}": text for name, text in limits.items()})
    assert (host_limits.memory_limit(), host_limits.available_bytes()) == (400_000_000, 60_000_000)
    assert (host_limits.cpus(), host_limits.open_processes(), host_limits.n_killed()) == (1, None, 1)


def test_version_2_without_limits_and_a_full_group(host: Path) -> None:
    version_2(host)
    write(host, {"cg/pod/container/memory.max": "max\n", "cg/pod/container/cpu.max": "max 100000\n"})
    assert (host_limits.memory_limit(), host_limits.cpus()) == (None, 64)
    write(host, {"cg/pod/memory.max": "1000\n", "cg/pod/memory.current": "1001\n"})
    assert host_limits.available_bytes() == 0


def test_what_this_machine_allows_is_known() -> None:
    free = host_limits.available_bytes()
    assert free is not None
    assert 10**7 < free < 10**14
    assert 1 <= host_limits.cpus() <= (os.cpu_count() or 1)
