"""Which agents and edges to stop and start: a pure function of those that run and of the wanted number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.core.errors import BadInput


@dataclass(frozen=True)
class Agent:
    """An agent that a fleet runs, or an edge.

    Attributes:
        name: the name under which it registers with the cloud.
        service: the kind of device that it hosts, or the service of edges.
        devices: the number of its devices; an edge counts as one.
        number: its number within the service; the newest agent has the highest.
        together: what it is stopped with, as the other agents of one batch job; empty if it is stopped alone.
    """

    name: str
    service: str
    devices: int
    number: int
    together: str = ""


@dataclass(frozen=True)
class Service:
    """A kind of device that is scaled independently, or the edges.

    Attributes:
        each: the number of devices that one agent hosts.
        exactly: whether every agent must host exactly that number; else it may host fewer.
        edges: whether it consists of edges, which are stopped only once no run needs them.
        newest_first: whether an agent can be stopped only together with all newer ones, or after them.
    """

    each: int = 1
    exactly: bool = True
    edges: bool = False
    newest_first: bool = False


EDGES = Service(edges=True)
"""The service of edges, each of which counts as one."""


@dataclass(frozen=True)
class Plan:
    """The agents to stop, the newest first, and the number of devices of each agent to start."""

    stop: tuple[Agent, ...] = ()
    start: tuple[int, ...] = ()


class AgentBackend(Protocol):
    """Starts and stops the agents and edges of this fleet, and touches nothing else."""

    def services(self) -> dict[str, Service]:
        """The services that can be scaled, by name."""

    def agents(self) -> list[Agent]:
        """The running agents and edges of this fleet, whether they have registered or not."""

    def check(self, n: int) -> None:
        """Check that `n` more agents can be started, before the first of them is.

        Raises:
            StrataError: they cannot be started; the message says why.
        """

    def start(self, service: str, devices: int) -> str:
        """Start an agent or edge and return its name; a stopped one is started again with its id and state.

        Raises:
            StrataError: the agent cannot be started; the message says why.
        """

    def stop(self, agents: Sequence[Agent]) -> None:
        """Request agents to end, and kill those that do not. Their state is kept.

        Returns when all have ended, unless `agents` lists them until they have.

        Raises:
            StrataError: some agents still run; the message says why.
        """


def plan(running: Sequence[Agent], wanted: int, service: Service) -> Plan:
    """The agents of one service to stop and to start, so that `wanted` devices run.

    Beginning with the oldest, an agent is kept if its devices still fit into the wanted number; the rest are stopped,
    and new agents host the missing devices.

    Args:
        running: the running agents of this service.
        wanted: the wanted number of devices.
        service: the number of devices that an agent of it hosts.

    Raises:
        BadInput: no set of agents hosts exactly that number; nothing should be stopped or started.
    """
    left, stop = wanted, []
    for agent in sorted(running, key=lambda agent: agent.number):
        if agent.devices <= left:
            left -= agent.devices
        else:
            stop.append(agent)
    return Plan(stop=tuple(reversed(stop)), start=_rooms(left, wanted, service))


def _rooms(missing: int, wanted: int, service: Service) -> tuple[int, ...]:
    """The number of devices of each new agent, as even as possible."""
    if service.exactly and missing % service.each:
        raise BadInput(f"{wanted} devices cannot be made up of agents that host {service.each} each")
    count = -(-missing // service.each)
    each, more = divmod(missing, count) if count else (0, 0)
    return tuple(each + (index < more) for index in range(count))
