"""The JSON bodies of registrations, heartbeats and fleet reports. They never affect a result."""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from shared.core.bounds import LARGEST_DEVICES, LARGEST_EDGES, Amount, Count, Real
from shared.core.records import Record
from shared.core.validation import ID, Id, visible
from shared.identity.revocations import SignedList
from shared.identity.signing import NEVER, Issue
from shared.runtime.cpu_use import CpuUse

MAX_AGENTS = 100_000
"""Most agents that a fleet reports, that an edge hears, or that the cloud registers."""


Name = Annotated[str, Field(max_length=100)]
Word = Annotated[str, Field(max_length=500), AfterValidator(visible)]
"""An id or an address, which is sent on."""
Versions = Annotated[dict[Name, Name], Field(max_length=50)]
Lack = Annotated[str, Field(max_length=300)]
"""What a node lacks, in words that others show; empty if nothing."""
ProcessId = Annotated[str, Field(max_length=64, pattern="^[0-9a-f]*$")]
"""Tells one process of a node from another; empty if its sender is of an older version."""


Port = Annotated[int, Field(ge=1, le=65535)]
Connect = Literal["listen", "up"]
"""How a node is reached: at a port on which it listens, or by requests that it takes from the tier above."""
MAX_MISSING = 1000
"""Most agents that an edge asks for in one heartbeat."""


def process_of(nonce: str) -> str:
    """Returns the id of the process that registers with a nonce, which it does not disclose."""
    return hashlib.sha256(nonce.encode()).hexdigest()[:16]


class AgentRegistration(Record):
    """Agent to cloud. The cloud sends a request to the source address of this one and expects the nonce there.

    Attributes:
        versions: of the agent's Python and packages; an agent whose versions are not the cloud's takes part in no run.
        plugins: the digests of its plug-in packages by name; a run needs those that its spec uses.
        max_body_bytes: the largest body that it takes; 0 if it does not say.
        connect: how it is reached.
        port: on which it listens; None if it does not.
    """

    agent: str = Field(pattern=ID)
    name: str = Field(pattern=ID)
    devices: int = Field(ge=1, le=LARGEST_DEVICES)
    profile: str = Field(pattern=ID)
    connect: Connect = "listen"
    port: Port | None = None
    nonce: str = Field(min_length=16, max_length=64)
    versions: Versions = Field(default_factory=dict)
    plugins: Versions = Field(default_factory=dict)
    max_body_bytes: Count = 0


class AgentRegistrationAnswer(Record):
    """Cloud to agent.

    Attributes:
        edge: the edge for its heartbeats; empty while no edge is alive.
        edge_url: its address.
        runs: all runs; the agent deletes what it keeps of others, which were deleted while it was away.
        left_out: why it takes part in no run, None if it does.
        cloud_key: the key with which the cloud signs what nodes pass on (PEM); empty where nodes show no certificates.
        clock_s: the cloud's wall clock, seconds since the epoch; None of an older version.
    """

    edge: str = ""
    edge_url: str = ""
    runs: tuple[Word, ...] = ()
    left_out: str | None = None
    cloud_key: str = ""
    clock_s: float | None = None


class AgentHeartbeat(Record):
    """Agent to edge.

    Attributes:
        visiting: the device whose task runs now.
        waiting: number of requests running or waiting.
        revoked: the issue of the list of revoked certificates that the agent knows.
        process: of the agent.
        lacks: what it lacks to answer requests.
        clock_s: its wall clock, seconds since the epoch.
        cpu: CPUs of its container, None where that has no limit.
    """

    agent: str = Field(pattern=ID)
    visiting: Count | None = None
    waiting: Count = 0
    revoked: Issue = NEVER
    process: ProcessId = ""
    lacks: Lack = ""
    clock_s: Amount | None = None
    cpu: CpuUse | None = None


class EdgeRegistration(Record):
    """Edge to cloud; the other fields as in `AgentRegistration`.

    Attributes:
        connect: how the cloud reaches it.
        port: on which it listens; agents reach it there in any case.
        host: its address as agents reach it; empty if it is the source address.
    """

    edge: str = Field(pattern=ID)
    name: Id | Literal[""] = ""
    connect: Connect = "listen"
    port: Port
    host: Annotated[str, Field(max_length=50)] = ""
    nonce: str = Field(min_length=16, max_length=64)
    versions: Versions = Field(default_factory=dict)
    plugins: Versions = Field(default_factory=dict)
    max_body_bytes: Count = 0


class EdgeRegistrationAnswer(Record):
    """Cloud to edge.

    Attributes:
        cloud_key: as in `AgentRegistrationAnswer`.
        url: the address at which other tiers reach the edge.
        runs: all runs; the edge deletes what it keeps of others, which were deleted while it was away.
        left_out: why it takes part in no run, None if it does.
        clock_s: as in `AgentRegistrationAnswer`.
    """

    url: str
    runs: tuple[Word, ...] = ()
    left_out: str | None = None
    cloud_key: str = ""
    clock_s: float | None = None


class RosterEntry(Record):
    """An agent as an edge last heard it; `ahead_s`: by how much its clock is ahead of the edge's."""

    agent: str = Field(pattern=ID)
    age_s: Amount
    visiting: Count | None = None
    process: ProcessId = ""
    lacks: Lack = ""
    ahead_s: Real | None = None


class EdgeHeartbeat(Record):
    """Edge to cloud, with the agents that it hears; the other fields as in `AgentHeartbeat`.

    Attributes:
        missing: agents' processes that dial out, do not poll this edge, and should.
        awaits: agents whose answers the edge awaits.
    """

    edge: str = Field(pattern=ID)
    roster: tuple[RosterEntry, ...] = Field(default=(), max_length=MAX_AGENTS)
    missing: tuple[ProcessId, ...] = Field(default=(), max_length=MAX_MISSING)
    awaits: tuple[Word, ...] = Field(default=(), max_length=MAX_AGENTS)
    revoked: Issue = NEVER
    process: ProcessId = ""
    lacks: Lack = ""
    clock_s: Amount | None = None


class HeartbeatAnswer(Record):
    """Cloud to edge.

    Attributes:
        unknown: agents named by the edge that are not registered (the cloud lost its store) and should register again.
        heard: of the agents that the edge awaits, those that other edges hear, with the seconds since then.
        moved: URLs of agents that recently came back at another address.
        deleted: recently deleted runs; the edge deletes what it keeps of them.
        left: of the agents that the edge awaits, those that a fleet has stopped; no round waits for them.
        revoked: the list of revoked certificates, if it is newer than the edge's.
        strangers: processes named by the edge whose agents another process has registered since.
    """

    unknown: tuple[Word, ...] = ()
    strangers: tuple[Word, ...] = ()
    heard: dict[Word, float] = Field(default_factory=dict)
    moved: dict[Word, Word] = Field(default_factory=dict)
    deleted: tuple[Word, ...] = ()
    left: tuple[Word, ...] = ()
    revoked: SignedList = ""


class AgentHeartbeatAnswer(Record):
    """Edge to agent.

    Attributes:
        deleted: recently deleted runs; the agent deletes what it keeps of them.
        revoked: the list of revoked certificates, if it is newer than the agent's.
    """

    deleted: tuple[Word, ...] = ()
    revoked: SignedList = ""


class NonceAnswer(Record):
    """A tier's answer when the cloud checks its registration."""

    nonce: str


class FleetAgent(Record):
    """An agent that a fleet runs, by the name with which it registers."""

    name: Id
    service: Id
    devices: int = Field(ge=1, le=LARGEST_DEVICES)


class FleetReport(Record):
    """Fleet to cloud, regularly: the agents that it runs, and the changes that it is about to make.

    Attributes:
        fleet: its name; one fleet is connected at a time.
        begins: whether this is its first report; then the numbers wanted of an earlier fleet are forgotten.
        services: the kinds of devices that it scales, with the number of devices that each of their agents hosts;
            None if the fleet may choose.
        agents: the agents that run.
        edges: names of the edges that run; None = this fleet starts and stops no edges.
        leaving: names of agents and edges that it wants to stop; such an agent hosts no device from the next round on,
            and no further run begins with such an edge.
        left: names of agents and edges that it has stopped since the last report that was answered.
        wanted: the numbers of devices towards which it works, by service.
        wanted_edges: the number of edges towards which it works, None if any is right.
        error: why it could not reach them.
    """

    fleet: Id
    begins: bool = False
    services: dict[Id, Annotated[int, Field(ge=1)] | None] = Field(min_length=1, max_length=100)
    agents: tuple[FleetAgent, ...] = Field(default=(), max_length=MAX_AGENTS)
    edges: tuple[Id, ...] | None = Field(default=None, max_length=LARGEST_EDGES)
    leaving: tuple[Id, ...] = Field(default=(), max_length=MAX_AGENTS)
    left: tuple[Id, ...] = Field(default=(), max_length=MAX_AGENTS)
    wanted: dict[Id, Count] = Field(default_factory=dict, max_length=100)
    wanted_edges: Count | None = None
    error: str | None = Field(default=None, max_length=2000)


class FleetOrders(Record):
    """Cloud to fleet.

    Attributes:
        wanted: devices by service; services that are not named stay as they are.
        wanted_edges: edges; None = as many as there are.
        released: names of leaving agents that no round needs any more, and of leaving edges that no run needs.
    """

    wanted: dict[str, int] = Field(default_factory=dict)
    wanted_edges: int | None = None
    released: tuple[str, ...] = ()
