"""The models of `/agents` and `/edges`: who is registered, and how it is.

The models of `/topology` and `PATCH /agents/{id}`: what is there, and what should be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from shared.core.records import Record

State = Literal["alive", "suspect", "lost", "revived", "offline", "leaving", "left"]
"""Of an agent or edge: heard lately; not for half the TTL; not for the TTL; heard again after that, lately.

Of an agent also: heard, and taken offline by `PATCH /agents/{id}`; about to be stopped by the fleet; stopped by it.
"""


class AgentInfo(Record):
    """A registered agent (device process); `devices` is its room, `seats` those of the active run.

    One that is not `online` makes no visits, by `PATCH /agents/{id}`. By that, `profile` may be another one than
    `own_profile`, which its environment names.
    """

    agent: str
    name: str
    state: State
    last_seen_s: float
    devices: int
    profile: str
    own_profile: str = "standard"
    edge: str | None = None
    seats: tuple[int, ...] = ()
    visiting: int | None = None
    online: bool = True


class AgentPage(Record):
    """`GET /agents`."""

    agents: tuple[AgentInfo, ...]


class EdgeInfo(Record):
    """A registered edge."""

    edge: str
    url: str
    state: State
    last_seen_s: float
    n_agents: int


class EdgePage(Record):
    """`GET /edges`."""

    edges: tuple[EdgeInfo, ...]


MAX_DEVICES = 100_000
Devices = Annotated[int, Field(ge=0, le=MAX_DEVICES)]


class AgentChange(Record):
    """Body of `PATCH /agents/{id}`; what is not named stays.

    Attributes:
        online: whether it makes visits.
        profile: a name of the catalogue, for runs with `devices.profile: agent`; null: what its environment names.
    """

    online: bool = True
    profile: Annotated[str, Field(max_length=100)] | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if not self.model_fields_set:
            raise ValueError("nothing to change: name `online`, `profile`, or both")
        return self


class FleetInfo(Record):
    """The fleet that makes the wanted numbers so.

    Attributes:
        fleet: its name.
        since_s: for how long it has been heard.
        last_seen_s: since it was last heard.
        services: the kinds of devices that it scales, with how many devices each of their agents hosts; None where
            it may choose.
        wanted: what it works towards; differs from the topology's until it has heard of a change.
        running: devices of the agents that it runs, by service, registered or not.
        leaving: names of agents that it will stop once no round needs them.
        error: why it could not do what is wanted.
    """

    fleet: str
    since_s: float
    last_seen_s: float
    services: dict[str, int | None]
    wanted: dict[str, int]
    running: dict[str, int]
    leaving: tuple[str, ...] = ()
    error: str | None = None


class TopologyInfo(Record):
    """`GET /topology`: what is there.

    Attributes:
        wanted: devices by service, as last put; empty if nobody said.
        present: devices of the fleet's agents that are here and stay, by service; empty without a fleet.
        n_devices: room of all agents that take part, the fleet's or not.
        n_agents: how many these are.
        fleet: who serves `PUT /topology`; None if nobody does.
    """

    wanted: dict[str, int] = Field(default_factory=dict)
    present: dict[str, int] = Field(default_factory=dict)
    n_devices: int
    n_agents: int
    fleet: FleetInfo | None = None
    edges: tuple[EdgeInfo, ...]
    agents: tuple[AgentInfo, ...]
    active_run: str | None = None


def _numbers(raw: Any) -> Any:
    """Refuse here what is none of both: the error of a union would name its branches in the field's path."""
    numbers = raw.values() if isinstance(raw, Mapping) else [raw]
    if not all(type(number) is int and 0 <= number <= MAX_DEVICES for number in numbers):
        raise ValueError(f"a number from 0 to {MAX_DEVICES}, or one for each service by name, not {raw!s:.100}")
    return raw


class WantedTopology(Record):
    """Body of `PUT /topology`: a number of devices, or one for each service; those not named stay as they are."""

    devices: Annotated[Devices | dict[str, Devices], BeforeValidator(_numbers)]
