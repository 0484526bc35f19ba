"""The small JSON bodies by which tiers find each other: registration and heartbeats. Wall time, never science."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.core.records import Record
from shared.core.validation import ID, Id

MOST_AGENTS = 100_000


class AgentRegistration(Record):
    """Agent to cloud. The cloud calls the source address of this request back and expects the nonce there."""

    agent: str = Field(pattern=ID)
    name: str = Field(pattern=ID)
    devices: int = Field(ge=1, le=10_000)
    profile: str = Field(pattern=ID)
    port: int = Field(ge=1, le=65535)
    nonce: str = Field(min_length=16, max_length=64)


class AgentRegistrationAnswer(Record):
    """Cloud to agent.

    Attributes:
        edge_url: where its heartbeats go; empty while no edge is there.
        runs: all that there are; what it keeps of another was deleted while it was away.
    """

    edge_url: str = ""
    runs: tuple[str, ...] = ()


class AgentHeartbeat(Record):
    """Agent to edge. `visiting` is the seat whose visit runs now, `waiting` how many visits queue."""

    agent: str = Field(pattern=ID)
    visiting: int | None = None
    waiting: int = 0


class EdgeRegistration(Record):
    """Edge to cloud."""

    edge: str = Field(pattern=ID)
    port: int = Field(ge=1, le=65535)
    nonce: str = Field(min_length=16, max_length=64)


class EdgeRegistrationAnswer(Record):
    """Cloud to edge.

    Attributes:
        url: the address under which the others reach it.
        runs: all that there are; what it keeps of another was deleted while it was away.
    """

    url: str
    runs: tuple[str, ...] = ()


class RosterEntry(Record):
    """An agent as an edge last heard of it."""

    agent: str = Field(pattern=ID)
    age_s: float = Field(ge=0)
    visiting: int | None = None


class EdgeHeartbeat(Record):
    """Edge to cloud, with the roster of the agents that it hears."""

    edge: str = Field(pattern=ID)
    roster: tuple[RosterEntry, ...] = ()


class HeartbeatAnswer(Record):
    """Cloud to edge.

    Attributes:
        unknown: who of the roster is not registered (the cloud lost its memory) and should be again.
        heard: live agents that other edges hear, with the seconds since: an edge may ask one that beats elsewhere.
        moved: where agents are found that came back at another address lately.
        deleted: runs that were deleted lately: whatever is kept of them goes.
        left: agents that a fleet has stopped: nobody waits for them.
    """

    unknown: tuple[str, ...] = ()
    heard: dict[str, float] = Field(default_factory=dict)
    moved: dict[str, str] = Field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class AgentHeartbeatAnswer(Record):
    """Edge to agent. `deleted` are runs that were deleted lately: whatever is kept of them goes."""

    deleted: tuple[str, ...] = ()


class NonceAnswer(Record):
    """What a tier answers when it is called back."""

    nonce: str


class FleetAgent(Record):
    """An agent that a fleet runs, under the name that it registers with."""

    name: Id
    service: Id
    devices: int = Field(ge=1, le=10_000)


class FleetReport(Record):
    """Fleet to cloud, again and again: what runs, and what it is about to do.

    Attributes:
        fleet: its name; one fleet serves at a time.
        begins: its first word: what was wanted of an earlier one no longer counts, its own number stands.
        services: the kinds of devices that it scales, with how many devices each of their agents hosts; None where
            the fleet may choose.
        agents: those that run.
        leaving: names of agents that it wants to stop; they get no seat from the next round on.
        left: names of agents that it has stopped since the last report that was answered.
        wanted: what the fleet works towards.
        error: why it could not make that so.
    """

    fleet: Id
    begins: bool = False
    services: dict[Id, Annotated[int, Field(ge=1)] | None] = Field(min_length=1, max_length=100)
    agents: tuple[FleetAgent, ...] = Field(default=(), max_length=MOST_AGENTS)
    leaving: tuple[Id, ...] = Field(default=(), max_length=MOST_AGENTS)
    left: tuple[Id, ...] = Field(default=(), max_length=MOST_AGENTS)
    wanted: dict[Id, int] = Field(default_factory=dict)
    error: str | None = Field(default=None, max_length=2000)


class FleetOrders(Record):
    """Cloud to fleet.

    Attributes:
        wanted: devices by service; a service that is not named stays as it is.
        released: names of leaving agents that no round needs any more.
    """

    wanted: dict[str, int] = Field(default_factory=dict)
    released: tuple[str, ...] = ()
