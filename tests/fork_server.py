"""One fork server for a test process: importing the tiers takes longer than most tests.

From it are forked the processes of topologies, the fork servers of topologies that make their own (`forked_servers`),
and commands of `strata` (`tests/forked_strata.py`).
"""

from __future__ import annotations

import atexit
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from strata.launcher import fork_server
from strata.launcher.environment import Modules, common
from strata.launcher.fork_server import ForkServer
from strata.launcher.process import Process, execute

ROOT = Path(__file__).resolve().parents[1]
_ENVIRONMENT = dict(os.environ)
"""That of the session, before any test."""


_PREPARED: list[ForkServer] = []
"""Those of the workers, one each."""


@cache
def shared_fork_server() -> ForkServer:
    """The fork server of this process, with which it ends; it has neither environment nor folder of its first test."""
    server = _PREPARED.pop() if _PREPARED else _new()
    atexit.register(server.close)
    return server


def _new() -> ForkServer:
    folder = Path(tempfile.mkdtemp(prefix="strata-tests-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for name in os.environ.keys() - _ENVIRONMENT.keys():
            patch.delenv(name)
        for name, value in _ENVIRONMENT.items():
            patch.setenv(name, value)
        env = common({"NICEGUI_STORAGE_PATH": str(folder / "nicegui")}, "")
        server = ForkServer(env, folder / "fork-server.log", Modules().preloaded)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return server


# ---- of workers, whose servers are forked from one


@cache
def _root() -> ForkServer:
    server = _new()
    atexit.register(server.close)
    return server


def prepare(count: int) -> None:
    """Start the fork servers of so many workers, which are forked later."""
    root = _root()
    with _forked_from(lambda _: root):
        _PREPARED[:] = [_new() for _ in range(count)]
    for server in _PREPARED:
        server.process = Process("fork server", _Watched(server.process.pid), server.process.log)


def pytest_after_workers() -> None:
    """Leave the fork servers to the workers."""
    pytest_worker_begins(-1)


def pytest_worker_begins(number: int) -> None:
    """Have one of the fork servers, without holding the others open."""
    for other, server in enumerate(_PREPARED):
        if other != number:
            server._connection.close()
    _PREPARED[:] = [server for other, server in enumerate(_PREPARED) if other == number]


class _Watched:
    """A process that is no child of this one, with the methods of `subprocess.Popen` that `Process` uses."""

    def __init__(self, pid: int) -> None:
        self.pid, self._descriptor = pid, os.pidfd_open(pid)

    def poll(self) -> int | None:
        """The exit status, of which nothing is known; None while it runs."""
        return 0 if select.select([self._descriptor], [], [], 0)[0] else None

    def wait(self, timeout: float) -> int:
        """Wait for its end; raises `subprocess.TimeoutExpired`."""
        if not select.select([self._descriptor], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("fork server", timeout)
        return 0


@contextmanager
def forked_servers() -> Iterator[None]:
    """In this block each fork server of the tiers is forked from the shared one, with the same program."""
    shared_fork_server()
    with _forked_from(lambda env: shared_fork_server() if shared_fork_server().can_start(env) else None):
        yield


@contextmanager
def _forked_from(server_for: Callable[[Mapping[str, str]], ForkServer | None]) -> Iterator[None]:
    def forked(
        name: str, module: str, env: Mapping[str, str], log: Path, inherited: Mapping[str, int], modules: Sequence[str]
    ) -> Process:
        if modules != Modules().preloaded or (server := server_for(env)) is None:
            return execute(name, module, env, log, inherited, modules)
        return server.start(name, module, env, log, inherited)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_server, "execute", forked)
        yield
