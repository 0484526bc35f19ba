"""`strata.local`: a cloud, edges and devices as processes of this machine, which end with the program."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from functools import partial
from pathlib import Path

from shared.results.folder import read_run
from shared.results.lookup import find_folders
from strata.api.client import Client
from strata.fleet.processes import fleet_of
from strata.launcher.signals import postponed
from strata.launcher.topology import Topology
from strata.launcher.upkeep import Upkeep
from strata.objects.cloud import Cloud
from strata.objects.connection import Connection
from strata.output import quiet, stderr, working
from strata.runs.locally import resumed, topology_of
from strata.runs.run_and_wait import keep_if_incomplete, planned_topology

log = logging.getLogger(__name__)
_LOOK_S = 0.5


class Keeper:
    """Starts a topology, makes its agents match the wanted number of devices, and stops it, all on a thread of its own.

    The kernel ends processes with the thread that started them, and a caller's thread may end before its cloud.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology, self._owner = topology, os.getpid()
        self.error: BaseException | None = None
        self._started, self._ready, self._ending = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._keep, name="strata-local", daemon=True)

    def _keep(self) -> None:
        try:
            with self.topology:
                self._started.set()
                self._tend()
        except BaseException as error:
            self.error = error
        finally:
            self._started.set()

    def _tend(self) -> None:
        self._ready.wait()
        if self._ending.is_set():
            return
        upkeep = Upkeep(self.topology, lambda error: log.warning("%s", error.detail.partition("\n")[0]))
        with fleet_of(self.topology, "strata-local") as fleet:
            while not self._ending.wait(_LOOK_S):
                upkeep.look()
                self.topology.trim_logs()
                fleet.settle()

    def begin(self, ready_s: float) -> None:
        """Start, and wait until all edges and devices have registered.

        Raises:
            StrataError: the topology did not start, or was not ready in time; it has been stopped again.
        """
        self._thread.start()
        try:
            self._started.wait()
            self.check()
            self.topology.wait_ready(ready_s)
        except BaseException:
            self.end()
            raise
        self._ready.set()

    def check(self) -> None:
        """Check that runs can go on; a process forked from the owner cannot know.

        Raises:
            StrataError: the cloud, Redis or the fork server has ended, or the topology could not be kept.
        """
        if os.getpid() != self._owner:
            return
        if self.error is not None:
            raise self.error
        self.topology.check_vital()

    def end(self) -> None:
        """Stop the topology and wait until it has ended; does nothing in a process that was forked from its own."""
        if os.getpid() != self._owner:
            return
        with postponed():  # a second Ctrl-C would leave the folder behind
            self._ending.set()
            self._ready.set()
            if self._thread.is_alive() and threading.current_thread() is not self._thread:
                self._thread.join()


class LocalCloud(Cloud):
    """The cloud of a topology on this machine.

    `close` stops all of it. So does the end of the `with` block or of the program, however it ends, and the loss of the
    last reference to this object and its runs.
    """

    def __init__(self, keeper: Keeper, runs_dir: Path) -> None:
        topology = keeper.topology
        client = Client(topology.url, check=keeper.check, authority=topology.authority_file)
        keep = partial(keep_if_incomplete, topology)
        super().__init__(Connection(client, runs_dir.resolve(), keeper.check, keep))
        self.logs = topology.folder / "logs"
        """The folder of the processes' logs, which is removed with the topology."""
        self._end = weakref.finalize(self._connection, keeper.end)

    def close(self) -> None:
        """Stop the topology; results stay. A second call does nothing."""
        super().close()
        self._end()


def local(
    edges: int = 2,
    devices: int = 10,
    *,
    agents: int | None = None,
    runs_dir: str | os.PathLike[str] = "runs",
    ready_s: float = 120.0,
    progress: bool = True,
    resume: str | os.PathLike[str] | None = None,
) -> LocalCloud:
    """Start Redis, a cloud, edges and agents as processes of this machine; a context manager that stops them.

    Args:
        edges: number of edges.
        devices: number of devices, spread over the agents.
        agents: number of agent processes; None means one per core.
        runs_dir: the folder into which results are written.
        ready_s: longest wait in seconds until all edges and devices have registered.
        progress: whether a terminal shows that it starts.
        resume: a run that a local cloud which has ended did not complete: its id, name or results folder. It goes on
            in the cloud that is returned (`get_run`), which has the edges and agents that it had; give no others.

    Raises:
        NotFound: there is no run to resume, or no state of it is kept here.
        BadInput: the numbers do not fit together, or this machine has too little memory for so many processes.
        StrataError: no redis-server was found, or the topology was not ready in time.
    """
    interrupted = find_folders(Path(runs_dir), [os.fspath(resume)])[-1] if resume is not None else None
    if interrupted is None:
        topology = planned_topology(edges, devices, agents, Path(runs_dir))
    else:
        topology = topology_of(read_run(interrupted), interrupted, Path(runs_dir))
    keeper, n = Keeper(topology), sum(topology.devices_per_agent)
    words = f"starting cloud, {len(topology.edge_names)} edges, {n} devices"
    with working(words, stderr() if progress else quiet()):
        keeper.begin(ready_s)
    cloud = LocalCloud(keeper, Path(runs_dir))
    if interrupted is not None:
        try:
            resumed(cloud._connection.client, read_run(interrupted).run)
        except BaseException:
            cloud.close()
            raise
    return cloud
