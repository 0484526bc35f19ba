"""What `strata doctor` finds on a bad host, before a run does."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import time
from pathlib import Path

import pytest

from shared.core.os_errors import SystemRefused
from shared.runtime import host_limits
from strata import host_checks
from strata.host_checks import Check, check_host


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finder:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("STRATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STRATA_CACHE_DIR", str(tmp_path / "cache"))
    return Finder(tmp_path / "runs")


class Finder:
    """The checks of this host by name."""

    def __init__(self, runs_dir: Path) -> None:
        self.runs_dir = runs_dir

    def __call__(self) -> dict[str, Check]:
        return {check.name: check for check in check_host(self.runs_dir)}


def test_on_a_good_host_nothing_fails_and_nothing_is_written(found: Finder, tmp_path: Path) -> None:
    assert [check for check in found().values() if check.state == "fail"] == []
    assert list(tmp_path.iterdir()) == []


def test_the_limits_of_a_container_are_the_machines(found: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_limits, "cpus", lambda: 1)
    monkeypatch.setattr(host_limits, "memory_bytes", lambda: 400_000_000)
    monkeypatch.setattr(host_limits, "available_bytes", lambda: 360_000_000)
    monkeypatch.setattr(host_checks, "of_limit", lambda: " (this container allows 0.40 GB)")
    monkeypatch.setattr(host_limits, "open_processes", lambda: 20)
    assert found()["cores"].state == "warn"
    memory = found()["memory"]
    assert (memory.state, memory.todo) == ("fail", "allow more memory, or use fewer agents")
    assert memory.found == "0.36 of 0.40 GB free (this container allows 0.40 GB), for about 2 processes"
    assert found()["processes"].found == "no more than 20 processes and threads"


def test_folders_that_cannot_be_written_are_named(found: Finder, tmp_path: Path) -> None:
    for name in ("runs", "home", "cache"):
        (tmp_path / name).touch()
    for name in ("results", "state", "cache"):
        assert (found()[name].state, ": Not a directory" in found()[name].found) == ("fail", True)


def test_folders_without_locks_are_named(found: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    bad = [name for name, check in found().items() if check.state == "fail"]
    assert bad == ["state", "cache", "temporary files"]
    assert "its file system has no locks" in found()["state"].found


def test_variables_that_cannot_be_used_are_named(found: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "ftp://proxy")
    assert found()["proxy (http)"].found.startswith("HTTP_PROXY is no address of a proxy")
    assert "proxy (https)" not in found()


@pytest.mark.parametrize(("hard", "state"), [(40, "fail"), (128, "warn"), (4096, "ok"), (-1, "ok")])
def test_few_open_files_are_said(hard: int, state: str, found: Finder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (hard, hard))
    assert found()["open files"].state == state


def test_a_host_that_cannot_reach_itself_and_a_clock_in_the_past_are_said(
    found: Finder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere() -> str:
        raise SystemRefused("neither 127.0.0.1 nor ::1")

    monkeypatch.setattr(host_checks, "loopback", nowhere)
    monkeypatch.setattr(time, "time", lambda: 3600.0)
    assert found()["loopback"].state == "fail"
    assert found()["clock"].found.startswith("1970-01-01 01:00, before")
    monkeypatch.setattr(host_checks, "loopback", lambda: "::1")
    assert found()["loopback"] == Check("loopback", "ok", "::1; this machine has no IPv4")
