"""When the last heartbeat of a node arrived, and its state by it: alive, suspect, lost, revived. Wall time only.

Also the records that the registry stores of agents and edges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import Field

from shared.core.errors import BadInput
from shared.core.records import Record
from shared.core.versions import differing, versions
from shared.service.api.nodes import State
from shared.simulation import known_profile


def require_profile(name: str) -> None:
    """Check that the catalogue has a profile.

    Raises:
        BadInput: the message names the nearest.
    """
    try:
        known_profile(name)
    except ValueError as error:
        raise BadInput(str(error), field="profile") from None


class AgentEntry(Record):
    """A registered agent.

    Attributes:
        profile: named by its environment.
        given_profile: set by `PATCH /agents/{id}`, in place of `profile`.
        online: whether it makes visits; set by `PATCH /agents/{id}`.
        left: the fleet has stopped it: no round waits for it, and its seats are free.
        versions: of its Python and packages.
        plugins: digests of its plug-in packages by name.
        process: that has registered; empty if an earlier cloud did not note it.
        max_body_bytes: the largest body that it takes; 0 if it is not known.
    """

    agent: str
    name: str
    url: str
    devices: int
    profile: str
    given_profile: str | None = None
    online: bool = True
    left: bool = False
    versions: dict[str, str]
    plugins: dict[str, str] = Field(default_factory=dict)
    process: str = ""
    max_body_bytes: int = 0

    @property
    def left_out(self) -> str | None:
        """Why the agent takes part in no run; see `left_out_because`."""
        return left_out_because(self.versions)

    @property
    def effective_profile(self) -> str:
        """The profile of its seats in runs that take profiles from agents."""
        return self.profile if self.given_profile is None else self.given_profile


class EdgeEntry(Record):
    """A registered edge; the other fields as of an agent.

    Attributes:
        url: where agents reach it.
        called_at: where the cloud does; empty if it is `url`.
    """

    edge: str
    name: str = ""
    url: str
    called_at: str = ""
    versions: dict[str, str]
    plugins: dict[str, str] = Field(default_factory=dict)
    process: str = ""
    max_body_bytes: int = 0

    @property
    def own_url(self) -> str:
        """Where the cloud reaches it."""
        return self.called_at or self.url

    @property
    def left_out(self) -> str | None:
        """Why the edge takes part in no run; see `left_out_because`."""
        return left_out_because(self.versions)


def left_out_because(found: Mapping[str, str]) -> str | None:
    """Why a node with these versions takes part in no run, None if they are the cloud's: others may give other bits."""
    if found == versions():
        return None
    if not found:
        return "it reports no versions of its packages: is it of another version of StrataFL?"
    differences = differing(found, versions()).items()
    return "; ".join(f"{name} {theirs}, the cloud has {ours}" for name, (theirs, ours) in differences)[:1000]


@dataclass
class LastSeen:
    """When a node was last heard (monotonic), and for an agent by which edge and during which visit.

    Attributes:
        at: when it was last heard.
        ttl_s: silence for longer than this is a loss, for longer than half of it suspect.
        edge: the edge that hears it, for an agent; of several that do, always the same one.
        edge_at: when that edge last heard it.
        visiting: the seat whose visit ran then, for an agent.
        revived_at: when it was heard again after it was lost.
        heard_by_this_process: whether this cloud process has heard it; else an earlier one had.
        left_out_at: since when its versions keep it out of runs, None if they do not.
        lacks: what it lacks to answer orders, as it says itself; empty if nothing.
        lacking_at: since when it has lacked something, None if it does not.
        ahead_s: by how much its clock is ahead of the cloud's, None if it is not known.
    """

    at: float
    ttl_s: float
    edge: str | None = None
    edge_at: float = -math.inf
    visiting: int | None = None
    revived_at: float | None = None
    heard_by_this_process: bool = True
    left_out_at: float | None = None
    lacks: str = ""
    lacking_at: float | None = None
    ahead_s: float | None = None

    def note(self, now: float, lacks: str, ahead_s: float | None) -> None:
        """Note what a heartbeat says of the node's condition."""
        self.lacking_at = None if not lacks else now if self.lacking_at is None else self.lacking_at
        self.lacks, self.ahead_s = lacks, self.ahead_s if ahead_s is None else round(ahead_s, 1)

    def lack(self, now: float) -> str | None:
        """What the node lacks for longer than the TTL, as after such a silence; None if nothing."""
        lasting = self.lacking_at is not None and now - self.lacking_at > self.ttl_s
        return f"it lacks what it needs: {self.lacks}" if lasting else None

    def out_since(self, now: float) -> float | None:
        """Since when the node has been kept out of runs although it is heard; None if it is not."""
        return self.left_out_at if self.left_out_at is not None or self.lack(now) is None else self.lacking_at

    def leave_out(self, reason: str | None) -> None:
        """Note whether it is left out of runs, for a reason, since its last sign of life."""
        self.left_out_at = None if reason is None else self.at if self.left_out_at is None else self.left_out_at

    def heard(self, at: float) -> None:
        """Note a sign of life; after more than the TTL it revives the node."""
        if at - self.at > self.ttl_s:
            self.revived_at = at
        self.at, self.heard_by_this_process = max(self.at, at), True

    def heard_by(self, edge: str, at: float, visiting: int | None) -> None:
        """Note that an edge heard an agent. During a run several do; the first stays until it hears it no more."""
        if edge == self.edge or at - self.edge_at > self.ttl_s / 2:
            self.edge, self.edge_at = edge, max(self.edge_at, at)
        if at >= self.at:
            self.heard(at)
            self.visiting = visiting

    def state(self, now: float) -> State:
        """The state of the node; `revived` for one TTL after it came back."""
        silent = now - self.at
        if silent > self.ttl_s:
            return "lost"
        if silent > self.ttl_s / 2:
            return "suspect"
        back = self.revived_at is not None and now - self.revived_at <= self.ttl_s
        return "revived" if back else "alive"

    def is_live(self, now: float) -> bool:
        """Whether the node was heard within the TTL."""
        return now - self.at <= self.ttl_s

    def takes_part(self, now: float) -> bool:
        """Whether it is live and not left out of runs."""
        return self.is_live(now) and self.out_since(now) is None


class StateChange(NamedTuple):
    """A node whose state changed since the last check."""

    kind: str
    name: str
    state: State


class StateChanges:
    """Finds the changes of nodes' states between two checks."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], State] = {}

    def since_last_check(self, states: dict[tuple[str, str], State]) -> list[StateChange]:
        """The nodes whose state differs from that at the last check, sorted; new nodes are not changes.

        A revived node was lost before: if no check saw that, both changes are returned.
        """
        found = []
        for node, state in sorted(states.items()):
            before = self._known.get(node, state)
            if state == "revived" and before in ("alive", "suspect"):
                found.append(StateChange(*node, "lost"))
            if state != before:
                found.append(StateChange(*node, state))
        self._known = states
        return found
