"""A fleet backend that starts and stops local processes of agents and edges, those of one launcher only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shared.identity.join_tokens import read_token
from shared.runtime.memory import PROCESS_BYTES, check_processes
from strata.fleet.cloud_client import CloudClient, fleet_keys
from strata.fleet.plan import EDGES, Agent, Service
from strata.fleet.reconciler import Fleet
from strata.fleet.settings import DrainSettings

if TYPE_CHECKING:
    from strata.launcher.topology import Topology

SERVICE, EDGE_SERVICE = "device", "edge"


class Processes:
    """Starts and stops the agents and edges of a local topology.

    A stopped process is started again with its name and its state folder; if there is none, a new one gets the next
    number. Use it from the thread that started the topology: the kernel ties its processes to that thread.

    Args:
        topology: a started topology.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._each = max(topology.devices_per_agent)

    def services(self) -> dict[str, Service]:
        """The devices, of which an agent hosts at most as many as the largest one at the start; and the edges."""
        return {SERVICE: Service(each=self._each, exactly=False), EDGE_SERVICE: EDGES}

    def agents(self) -> list[Agent]:
        """The agents and edges whose processes run."""
        running = self._running()
        agents = {name: (SERVICE, devices) for name, devices in self._topology.agents().items()}
        edges = dict.fromkeys(self._topology.edge_names, (EDGE_SERVICE, 1))
        found = {**agents, **edges}
        return [Agent(name, *what, _number(name)) for name, what in found.items() if name in running]

    def _running(self) -> set[str]:
        return {name for name, process in self._topology.processes.items() if process.returncode is None}

    def check(self, n: int) -> None:
        """Check that there is memory for `n` more agents, and for what agents just started will still allocate.

        Raises:
            BadInput: there is too little memory; the message gives the figures.
        """
        processes = self._topology.processes
        held = [processes[agent.name].private_bytes for agent in self.agents()]
        check_processes(n, owed=sum(max(PROCESS_BYTES - taken, 0) for taken in held))

    def start(self, service: str, devices: int) -> str:
        """Start the first stopped edge, or agent of that size, else a new one, and return its name."""
        topology, running = self._topology, self._running()
        known = topology.agents() if service == SERVICE else dict.fromkeys(topology.edge_names, 1)
        stopped = [name for name, held in known.items() if name not in running and held == devices]
        if not stopped:
            return topology.add_agent(devices) if service == SERVICE else topology.add_edge()
        self._topology.start_again(stopped[0])
        return stopped[0]

    def stop(self, agents: Sequence[Agent]) -> None:
        """Send SIGTERM, and SIGKILL after a grace period; the state folders stay."""
        self._topology.retire([agent.name for agent in agents])


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


@contextlib.contextmanager
def fleet_of(topology: Topology, name: str) -> Iterator[Fleet]:
    """The fleet of a local topology, registered with its cloud. Call `settle` regularly, from this thread.

    Raises:
        BadInput: a variable `FLEET_*` has a value that cannot be used, or is misspelt.
    """
    joining, drain_s = None, DrainSettings().drain_s
    if topology.secure:
        joining = fleet_keys(name, topology.folder / "fleet"), read_token(topology.join_token("fleet"))
    with CloudClient(topology.url, topology.tier_token, joining) as cloud:
        fleet = Fleet(name, Processes(topology), cloud, begins=True, drain_s=drain_s)
        fleet.settle()
        yield fleet
