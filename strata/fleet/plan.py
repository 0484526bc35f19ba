"""Who stays, who goes, who is started: a pure function of what runs and what is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.core.errors import BadInput


@dataclass(frozen=True)
class Agent:
    """An agent that a fleet runs.

    Attributes:
        name: under which it registers with the cloud.
        service: the kind of device that it hosts.
        devices: how many.
        number: of a service's agents the newest has the highest.
    """

    name: str
    service: str
    devices: int
    number: int


@dataclass(frozen=True)
class Service:
    """A kind of device that is scaled by itself.

    Attributes:
        each: devices that one of its agents hosts.
        exactly: no agent of it can be started with fewer.
    """

    each: int = 1
    exactly: bool = True


@dataclass(frozen=True)
class Plan:
    """What makes it so: agents to stop, the newest first, and the devices of each agent to start."""

    stop: tuple[Agent, ...] = ()
    start: tuple[int, ...] = ()


class AgentBackend(Protocol):
    """What starts and stops the agents that are ours, and touches nothing else."""

    def services(self) -> dict[str, Service]:
        """What can be scaled, by name."""

    def agents(self) -> list[Agent]:
        """Our agents that run, whether they have registered or not."""

    def check(self, n: int) -> None:
        """See that so many more agents can be started, before the first of them is.

        Raises:
            StrataError: they cannot; says why.
        """

    def start(self, service: str, devices: int) -> str:
        """Start an agent, and answer with its name; one that was stopped comes back, with its id and its state.

        Raises:
            StrataError: it cannot be started; says why.
        """

    def stop(self, agents: Sequence[Agent]) -> None:
        """Ask agents to end, end them if they do not, and return when they have ended. What they keep stays.

        Raises:
            StrataError: some still run; says why.
        """


def plan(running: Sequence[Agent], wanted: int, service: Service) -> Plan:
    """How to come from the agents of one service that run to so many devices.

    The oldest stay, as far as they fit; what is missing is started.

    Args:
        running: agents of this service.
        wanted: devices.
        service: what an agent of it can host.

    Raises:
        BadInput: the number cannot be made up of agents; nothing should be stopped or started.
    """
    left, stop = wanted, []
    for agent in sorted(running, key=lambda agent: agent.number):
        if agent.devices <= left:
            left -= agent.devices
        else:
            stop.append(agent)
    return Plan(stop=tuple(reversed(stop)), start=_rooms(left, wanted, service))


def _rooms(missing: int, wanted: int, service: Service) -> tuple[int, ...]:
    """Devices of each agent that is started, as even as they go."""
    if service.exactly and missing % service.each:
        raise BadInput(f"{wanted} devices cannot be made up of agents that host {service.each} each")
    count = -(-missing // service.each)
    each, more = divmod(missing, count) if count else (0, 0)
    return tuple(each + (index < more) for index in range(count))
