"""When somebody was last heard, and what follows: alive, suspect, lost, revived. Wall time only.

What the registry keeps of agents and edges.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

from shared.core.records import Record
from shared.service.api.nodes import State


class AgentEntry(Record):
    """A registered agent.

    Attributes:
        profile: that its environment names.
        given_profile: that `PATCH /agents/{id}` gave it in the place of that.
        online: whether it may visit; see `PATCH /agents/{id}`.
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


@dataclass
class LastSeen:
    """When a node was last heard (monotonic), by which edge, and what it did.

    Attributes:
        at: when it was last heard.
        ttl_s: silence for longer than this is a loss, for longer than half of it suspect.
        edge: which edge heard it, for an agent.
        visiting: the seat that it visited then, for an agent.
        revived_at: when it was heard again after a loss.
        first_hand: whether this process heard it, and does not only know it from an earlier one.
    """

    at: float
    ttl_s: float
    edge: str | None = None
    visiting: int | None = None
    revived_at: float | None = None
    first_hand: bool = True

    def heard(self, at: float) -> None:
        """Note a sign of life; one that comes after the TTL revives."""
        if at - self.at > self.ttl_s:
            self.revived_at = at
        self.at, self.first_hand = max(self.at, at), True

    def state(self, now: float) -> State:
        """What it is; `revived` for one TTL after it came back."""
        silent = now - self.at
        if silent > self.ttl_s:
            return "lost"
        if silent > self.ttl_s / 2:
            return "suspect"
        back = self.revived_at is not None and now - self.revived_at <= self.ttl_s
        return "revived" if back else "alive"

    @property
    def is_live(self) -> bool:
        """Heard within the TTL."""
        return time.monotonic() - self.at <= self.ttl_s


class Change(NamedTuple):
    """A node that became another state since somebody last looked."""

    kind: str
    name: str
    state: State


class Changes:
    """Tells what became of nodes between two looks."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], State] = {}

    def since(self, states: dict[tuple[str, str], State]) -> list[Change]:
        """The nodes whose state differs from the last look, sorted; new ones are no news.

        Who is back was lost, also if nobody looked meanwhile: both are told.
        """
        found = []
        for node, state in sorted(states.items()):
            before = self._known.get(node, state)
            if state == "revived" and before in ("alive", "suspect"):
                found.append(Change(*node, "lost"))
            if state != before:
                found.append(Change(*node, state))
        self._known = states
        return found
