"""One fork server for all topologies of a test session: importing the tiers takes longer than most tests."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from strata.launcher.environment import Modules, common
from strata.launcher.fork_server import ForkServer


@cache
def shared_fork_server() -> ForkServer:
    """The fork server of this process; it ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="strata-tests-"))
    env = common({"NICEGUI_STORAGE_PATH": str(folder / "nicegui")}, "")
    server = ForkServer(env, folder / "fork-server.log", Modules().preloaded)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    atexit.register(server.close)  # first
    return server
