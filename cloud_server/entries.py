"""What the registry keeps of agents and edges."""

from __future__ import annotations

from shared.core.records import Record


class AgentEntry(Record):
    """A registered agent.

    Attributes:
        profile: that its environment names.
        given_profile: that `PATCH /devices/{id}` gave it in the place of that.
        online: whether it may visit; see `PATCH /devices/{id}`.
        left: the fleet has stopped it: nobody waits for it, its seats are free.
    """

    agent: str
    name: str
    url: str
    devices: int
    profile: str
    given_profile: str | None = None
    online: bool = True
    left: bool = False

    @property
    def acts_as(self) -> str:
        """The profile that its seats have where a spec asks for that."""
        return self.profile if self.given_profile is None else self.given_profile


class EdgeEntry(Record):
    """A registered edge."""

    edge: str
    url: str
