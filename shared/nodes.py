"""The models of `/devices` and `/edges`: who is registered, and how it is."""

from __future__ import annotations

from typing import Literal

from shared.core.records import Record

State = Literal["alive", "suspect", "lost", "revived", "offline", "leaving", "left"]
"""Of an agent or edge: heard lately; not for half the TTL; not for the TTL; heard again after that, lately.

Of an agent also: heard, and taken offline by `PATCH /devices/{id}`; about to be stopped by the fleet; stopped by it.
"""


class AgentInfo(Record):
    """A registered agent (device process); `devices` is its room, `seats` those of the active run.

    One that is not `online` makes no visits, by `PATCH /devices/{id}`. By that, `profile` may be another one than
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
    """`GET /devices`."""

    devices: tuple[AgentInfo, ...]


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
