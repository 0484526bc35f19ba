"""The bodies of `/agents`, `/edges` and `/topology`: registered nodes, their states, and requested changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from shared.core.bounds import LARGEST_DEVICES, LARGEST_EDGES, Count
from shared.core.number_sets import EMPTY, NumberSet
from shared.core.records import Record

State = Literal["alive", "suspect", "lost", "revived", "left_out", "offline", "leaving", "left"]
"""The state of a node. Of an agent or edge:

- alive: heard within half the TTL;
- suspect: silent for more than half the TTL;
- lost: silent for more than the TTL;
- revived: heard again after a loss, within the last TTL;
- left_out: alive, but in no run: its versions of code, packages or protocol are not the cloud's, or it lacks what it
  needs;
- leaving: about to be stopped by the fleet.

Of an agent also:

- offline: alive, but taken offline by `PATCH /agents/{id}`;
- left: stopped by the fleet.
"""


class AgentInfo(Record):
    """A registered agent (a process that hosts devices).

    Attributes:
        devices: the number of devices that it can host.
        profile: the profile of its devices in runs that take profiles from agents; changed by `PATCH /agents/{id}`.
        own_profile: the profile that its environment names.
        edge: the edge that hears its heartbeats.
        seats: its devices in the active run.
        visiting: the device whose task runs.
        online: whether it takes tasks; changed by `PATCH /agents/{id}`.
        reason: why it is left out.
        clock_ahead_s: by how much its wall clock is ahead of the cloud's, None if it is not known.
    """

    agent: str
    name: str
    state: State
    last_seen_s: float
    devices: int
    profile: str
    own_profile: str = "standard"
    edge: str | None = None
    seats: NumberSet = EMPTY
    visiting: int | None = None
    online: bool = True
    reason: str | None = None
    clock_ahead_s: float | None = None


class AgentPage(Record):
    """`GET /agents`."""

    agents: tuple[AgentInfo, ...]


class EdgeInfo(Record):
    """A registered edge; `name` is what its environment calls it, else its host; the rest is as of an agent."""

    edge: str
    name: str = ""
    url: str
    state: State
    last_seen_s: float
    n_agents: int
    reason: str | None = None
    clock_ahead_s: float | None = None


class VisitsInFlight(Record):
    """An edge's `GET /runs/{id}/visits`: its tasks in flight, where devices are asynchronous.

    `ages`: by device, how many versions older the model of its task is than the edge's present one.
    """

    ages: dict[Count, Count] = Field(default_factory=dict)


class EdgePage(Record):
    """`GET /edges`."""

    edges: tuple[EdgeInfo, ...]


Devices = Annotated[int, Field(ge=0, le=LARGEST_DEVICES)]


class AgentChange(Record):
    """Body of `PATCH /agents/{id}`; fields that are not named stay as they are.

    Attributes:
        online: whether it takes tasks.
        profile: a name of the catalogue, for runs that take profiles from agents; null for the agent's own profile.
    """

    online: bool = True
    profile: Annotated[str, Field(max_length=100)] | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("nothing to change: name `online`, `profile`, or both")
        return self


class FleetInfo(Record):
    """The connected fleet, which starts and stops agents until the wanted numbers of devices are reached.

    Attributes:
        fleet: its name.
        since_s: seconds since its first report.
        last_seen_s: seconds since its last report.
        services: the kinds of devices that it scales, with the number of devices that each of their agents hosts;
            None if the fleet may choose.
        wanted: the numbers towards which it works; those of the topology once it has received them.
        wanted_edges: the number of edges towards which it works, None if it has not been told one.
        running: by service, the devices of the agents that it runs, registered or not.
        running_edges: the edges that it runs; None = it starts and stops none.
        leaving: names of agents that it will stop once no round needs them, and of edges once no run needs them.
        error: why it could not reach the wanted numbers.
    """

    fleet: str
    since_s: float
    last_seen_s: float
    services: dict[str, int | None]
    wanted: dict[str, int]
    wanted_edges: int | None = None
    running: dict[str, int]
    running_edges: int | None = None
    leaving: tuple[str, ...] = ()
    error: str | None = None


class TopologyInfo(Record):
    """`GET /topology`: the registered nodes, and how many devices and edges are wanted.

    Attributes:
        wanted: devices by service, as last set by `PUT /topology`; empty if never.
        wanted_edges: edges, as last set by `PUT /topology`; None if never.
        present: by service, devices of the fleet's agents that are alive and not leaving; empty without a fleet.
        present_edges: the fleet's edges that are alive and not leaving; None without a fleet that scales edges.
        n_devices: the number of devices that all live agents can host, of the fleet or not.
        n_agents: the number of these agents.
        fleet: the connected fleet, which `PUT /topology` needs; None if there is none.
        active_run, active_runs: the runs that train: the one that began first, and all.
        notes: of which of these runs not all wanted devices can be a part, and what would help.
    """

    wanted: dict[str, int] = Field(default_factory=dict)
    wanted_edges: int | None = None
    present: dict[str, int] = Field(default_factory=dict)
    present_edges: int | None = None
    n_devices: int
    n_agents: int
    fleet: FleetInfo | None = None
    edges: tuple[EdgeInfo, ...]
    agents: tuple[AgentInfo, ...]
    active_run: str | None = None
    active_runs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def _numbers(raw: Any) -> Any:
    """Rejects anything else here: the error of a union would name its branches in the field's path."""
    numbers = raw.values() if isinstance(raw, Mapping) else [raw]
    if not all(type(number) is int and 0 <= number <= LARGEST_DEVICES for number in numbers):
        raise ValueError(f"a number from 0 to {LARGEST_DEVICES}, or one for each service by name, not {raw!s:.100}")
    return raw


class WantedTopology(Record):
    """Body of `PUT /topology`: a number of devices, or one per service, and a number of edges.

    What is not named stays as it is: devices, edges, or a service.
    """

    devices: Annotated[Devices | dict[str, Devices] | None, BeforeValidator(_numbers)] = None
    edges: int | None = Field(default=None, ge=1, le=LARGEST_EDGES)

    @model_validator(mode="after")
    def _of_something(self) -> Self:
        if self.devices is None and self.edges is None:
            raise ValueError("a number of devices or of edges: `devices`, `edges` or both")
        return self
