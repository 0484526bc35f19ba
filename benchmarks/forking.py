"""How topologies of benchmarks fork their processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from strata.launcher.environment import Modules, common
from strata.launcher.fork_server import ForkServer

_shared: list[ForkServer] = []


def fork_server() -> bool | ForkServer:
    """What `Topology` takes as `fork`: each topology's own server, so that memory is counted apart, or a shared one."""
    return _shared[-1] if _shared else True


@contextmanager
def one_fork_server(folder: Path) -> Iterator[None]:
    """Within it, topologies share a fork server: for sizes whose figures mean nothing, since imports take the time."""
    server = ForkServer(
        common({"NICEGUI_STORAGE_PATH": str(folder / "nicegui")}, ""), folder / "fork.log", Modules().preloaded
    )
    _shared.append(server)
    try:
        yield
    finally:
        _shared.pop()
        server.close()
