"""The code under mutation, in packages of which each gets about the same number of mutants."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Package(NamedTuple):
    """Some files of the product, and the folders or files of tests that mirror them."""

    name: str
    code: tuple[str, ...]
    tests: tuple[str, ...]


PACKAGES = (
    Package(
        "aggregation",
        ("shared/federation/aggregation/*.py",),
        ("tests/shared/federation/aggregation",),
    ),
    Package(
        "visits",
        ("shared/federation/visits/*.py",),
        ("tests/shared/federation/visits", "tests/device_agent"),
    ),
    Package(
        "wire",
        ("shared/wire/**/*.py",),
        ("tests/shared/wire",),
    ),
    Package(
        "storage",
        ("shared/storage/**/*.py",),
        ("tests/shared/storage",),
    ),
    Package(
        "device",
        ("device_agent/device_host.py", "device_agent/routes.py"),
        ("tests/device_agent",),
    ),
    Package(
        "login",
        ("cloud_server/dashboard/login.py", "shared/service/auth.py", "shared/service/token_files.py"),
        (
            "tests/cloud_server/dashboard/test_login.py",
            "tests/shared/service/test_auth.py",
            "tests/security/test_tokens.py",
        ),
    ),
    Package(
        "spec and selection",
        ("shared/spec/*.py", "shared/federation/spec_parser.py", "shared/federation/selection.py"),
        ("tests/shared/spec", "tests/shared/federation/test_selection.py"),
    ),
    Package(
        "cloud rounds",
        tuple(
            f"cloud_server/runs/{name}.py" for name in ("executor", "repository", "round", "round_record", "run_state")
        ),
        (
            "tests/cloud_server/runs",
            "tests/test_agents_profiles.py",
            "tests/test_faults.py",
            "tests/test_recovery.py",
        ),
    ),
    Package(
        "edge rounds",
        ("edge_server/rounds/*.py", "edge_server/round_handler.py", "edge_server/state_store.py"),
        (
            "tests/edge_server",
            "tests/test_stragglers.py",
            "tests/test_two_exchanges.py",
            "tests/test_simulated_time.py",
        ),
    ),
)


def code_of(package: Package, root: Path) -> list[str]:
    """The package's files, as paths from the root."""
    found = {path for pattern in package.code for path in root.glob(pattern)}
    return sorted(path.relative_to(root).as_posix() for path in found)


def all_code(root: Path) -> list[str]:
    """Every file under mutation, as paths from the root."""
    return [path for package in PACKAGES for path in code_of(package, root)]
