"""Local agent processes as a fleet's hands: those of one launcher, and no other process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from shared.runtime.memory import PROCESS_BYTES, check_processes
from strata.fleet.cloud_client import CloudClient
from strata.fleet.plan import Agent, Service
from strata.fleet.reconciler import Fleet

if TYPE_CHECKING:
    from strata.launcher.topology import Topology

SERVICE = "device"


class Processes:
    """Starts and stops the agents of a local topology.

    An agent that was stopped comes back under its name, on its own state folder; else a new one takes the next number.
    To be used from the thread that started the topology: the kernel ties its processes to that.

    Args:
        topology: started.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._each = max(topology.rooms)

    def services(self) -> dict[str, Service]:
        """One kind of device; an agent hosts as many as one did at the start, or fewer."""
        return {SERVICE: Service(each=self._each, exactly=False)}

    def agents(self) -> list[Agent]:
        """The agents whose process runs."""
        rooms = self._topology.agents()
        running = {name for name, process in self._topology.processes.items() if process.returncode is None}
        return [Agent(name, SERVICE, room, _number(name)) for name, room in rooms.items() if name in running]

    def check(self, n: int) -> None:
        """See that there is memory for so many more agents, besides what those that just started have yet to take.

        Raises:
            BadInput: there is too little; with the figures.
        """
        processes = self._topology.processes
        held = [processes[agent.name].resident_bytes for agent in self.agents()]
        check_processes(n, owed=sum(max(PROCESS_BYTES - taken, 0) for taken in held))

    def start(self, service: str, devices: int) -> str:
        """Start the first stopped agent of that size, else a new one; answers with its name."""
        running = {agent.name for agent in self.agents()}
        stopped = [name for name, room in self._topology.agents().items() if name not in running and room == devices]
        if not stopped:
            return self._topology.add_agent(devices)
        self._topology.start_again(stopped[0])
        return stopped[0]

    def stop(self, agents: Sequence[Agent]) -> None:
        """SIGTERM, after a grace SIGKILL; the state folders stay."""
        self._topology.retire([agent.name for agent in agents])


def _number(name: str) -> int:
    return int(name.rpartition("-")[2])


@contextlib.contextmanager
def fleet_of(topology: Topology, name: str) -> Iterator[Fleet]:
    """The fleet of a local topology, known to its cloud. Let it `settle` again and again, from this thread."""
    with CloudClient(topology.url, topology.tier_token) as cloud:
        fleet = Fleet(name, Processes(topology), cloud, begins=True)
        fleet.settle()
        yield fleet
