"""A real Redis for the tests of this folder, and what they do on the disk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from strata.launcher.redis_server import RedisServer, start_redis


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One server for all tests that do not stop it; its keys are not removed between tests."""
    with start_redis(tmp_path_factory.mktemp("redis"), fsync="no") as server:
        yield server


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Files and folders for which a test's code waits until they are on the disk, and its renames, in order."""
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        done.append("folder" if stat.S_ISDIR(found.st_mode) else f"file of {found.st_size}")
        sync(descriptor)

    def rename(source: Path, target: Path) -> None:
        done.append("rename")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", rename)
    return done
