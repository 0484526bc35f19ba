"""The CPUs of a container as one of its processes measures them, read from copies of what Linux shows."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from shared.runtime.cpu_use import CpuMeter, CpuUse
from tests.shared.runtime.test_host_limits import host, version_1, version_2, write

__all__ = ["host"]


def used(folder: Path, version: int, seconds: float) -> None:
    """Write how many CPU seconds the container has taken, and its limit of 0.4 CPUs."""
    if version == 1:
        write(folder, {"cg/cpu,cpuacct/slurm/job/cpuacct.usage": f"{seconds * 1e9:.0f}\n"})
        limit = {"cfs_quota_us": "40000\n", "cfs_period_us": "100000\n"}
        write(folder, {f"cg/cpu,cpuacct/slurm/job/cpu.{name}": text for name, text in limit.items()})
    else:
        stat = f"usage_usec {seconds * 1e6:.0f}\nuser_usec 5\n"
        write(folder, {"cg/pod/container/cpu.stat": stat, "cg/pod/container/cpu.max": "40000 100000\n"})


@pytest.mark.parametrize("version", [1, 2])
def test_use_is_that_between_two_looks(host: Path, monkeypatch: pytest.MonkeyPatch, version: int) -> None:
    (version_1 if version == 1 else version_2)(host)
    now, own = [100.0], [5.0]
    monkeypatch.setattr(time, "process_time", lambda: own[0])
    used(host, version, 50.0)
    meter = CpuMeter(lambda: now[0])
    assert meter.look() == CpuUse(limit=0.4)
    now[0], own[0] = 102.0, 5.2
    used(host, version, 50.6)
    found = meter.look()
    assert found is not None
    assert found.limit == 0.4
    assert [found.used, found.own] == pytest.approx([0.3, 0.1])
    now[0] = 102.1
    used(host, version, 60.0)
    assert meter.look() == found  # too soon for another one


def test_without_a_limit_nothing_is_measured(host: Path) -> None:
    version_2(host)
    write(host, {"cg/pod/container/cpu.stat": "usage_usec 5\n", "cg/pod/container/cpu.max": "max 100000\n"})
    assert CpuMeter().look() is None


@pytest.mark.parametrize(
    ("limit", "used", "own", "free"),
    [(0.4, 0.0, 0.0, 0.4), (4.0, 1.0, 1.0, 1.0), (0.4, 0.3, 0.1, 0.2), (0.4, 0.9, 0.1, 0.0), (0.4, 0.1, 0.3, 0.4)],
)
def test_a_thread_gets_what_others_leave_and_at_most_one_cpu(
    limit: float, used: float, own: float, free: float
) -> None:
    assert CpuUse(limit=limit, used=used, own=own).free_share == pytest.approx(free)
