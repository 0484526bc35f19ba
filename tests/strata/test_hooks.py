"""`strata.hooks`: one import for user-defined algorithms, without clients and servers."""

from __future__ import annotations

import subprocess
import sys

import pytest

import strata.hooks
from shared.federation import hooks

CLIENTS_AND_SERVERS = ("docker", "fastapi", "httpx2", "matplotlib", "nicegui", "redis", "starlette", "typer", "uvicorn")


def test_hooks_export_everything_that_built_in_algorithms_import() -> None:
    assert set(hooks.__all__) < set(strata.hooks.__all__)
    for name in hooks.__all__:
        assert getattr(strata.hooks, name) is getattr(hooks, name)


@pytest.mark.slow
def test_importing_hooks_loads_no_client_and_no_server() -> None:
    program = f"import sys, strata.hooks; print(*sorted(sys.modules.keys() & {set(CLIENTS_AND_SERVERS)!r}))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_the_check_above_can_fail() -> None:
    program = f"import sys, httpx2; print(*sorted(sys.modules.keys() & {set(CLIENTS_AND_SERVERS)!r}))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["httpx2"]
