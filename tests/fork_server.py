"""One fork server for a test session: importing the tiers takes longer than most tests.

From it are forked the processes of topologies, the fork servers of topologies that make their own (`forked_servers`),
and commands of `strata` (`tests/forked_strata.py`).
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
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


@cache
def shared_fork_server() -> ForkServer:
    """The fork server of this process, with which it ends; it has neither environment nor folder of its first test."""
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
    atexit.register(server.close)  # first
    return server


@contextmanager
def forked_servers() -> Iterator[None]:
    """In this block each fork server of the tiers is forked from the shared one, with the same program."""

    def forked(
        name: str, module: str, env: Mapping[str, str], log: Path, inherited: Mapping[str, int], modules: Sequence[str]
    ) -> Process:
        if modules != Modules().preloaded or not shared_fork_server().can_start(env):
            return execute(name, module, env, log, inherited, modules)
        return shared_fork_server().start(name, module, env, log, inherited)

    with pytest.MonkeyPatch.context() as patch:
        shared_fork_server()
        patch.setattr(fork_server, "execute", forked)
        yield
