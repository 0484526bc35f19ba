"""What the registry keeps of agents and edges."""

from __future__ import annotations

from shared.records import Record


class AgentEntry(Record):
    """A registered agent.

    Attributes:
        online: whether it may visit; see `PATCH /devices/{id}`.
        left: the fleet has stopped it: nobody waits for it, its seats are free.
    """

    agent: str
    name: str
    url: str
    devices: int
    profile: str
    online: bool = True
    left: bool = False


class EdgeEntry(Record):
    """A registered edge."""

    edge: str
    url: str
