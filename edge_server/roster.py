"""The agents that this edge hears. Wall time and liveness only.

Waiting for an agent: as long as it is heard and the round is wanted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass, field
from typing import TypeVar

from shared.core.errors import Cancelled, Lost, NotFound
from shared.service.api.membership import AgentHeartbeat, HeartbeatAnswer, RosterEntry

FORGET_S = 600.0


@dataclass
class Roster:
    """When which agent was last heard.

    Attributes:
        heard: here, and what it said.
        elsewhere: at other edges, as the cloud told.
        unknown: whom the cloud does not know.
        moved: where agents are found that came back at another address, as the cloud told.
        deleted: runs that were deleted lately, as the cloud told.
        left: agents that a fleet has stopped, and since when the cloud tells so.
    """

    heard: dict[str, tuple[float, AgentHeartbeat]] = field(default_factory=dict)
    elsewhere: dict[str, float] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    left: dict[str, float] = field(default_factory=dict)

    def beat(self, beat: AgentHeartbeat) -> None:
        """Note a heartbeat.

        Raises:
            NotFound: the cloud does not know this agent (any more); it should register again.
        """
        self.heard[beat.agent] = (time.monotonic(), beat)
        if beat.agent in self.unknown:
            self.unknown.discard(beat.agent)
            raise NotFound(f"the cloud does not know agent {beat.agent}: it should register again")

    def fresh(self, ttl_s: float) -> list[AgentHeartbeat]:
        """The last words of the agents that were heard lately, here."""
        since = time.monotonic() - ttl_s
        return [beat for at, beat in list(self.heard.values()) if at >= since]

    def silent_s(self, agent: str, since: float) -> float:
        """Seconds without a word from an agent, counted from `since` (monotonic) at the earliest."""
        here = self.heard[agent][0] if agent in self.heard else since
        return time.monotonic() - max(here, self.elsewhere.get(agent, since), since)

    def has_left(self, agent: str, since: float) -> bool:
        """Whether an agent left after that (monotonic). Who left before has come back, or nobody would ask for it."""
        return self.left.get(agent, since) > since

    def told(self, answer: HeartbeatAnswer) -> None:
        """Note what the cloud answered to the roster."""
        now = time.monotonic()
        self.unknown = set(answer.unknown)
        self.elsewhere = {agent: now - age for agent, age in answer.heard.items()}
        self.moved |= answer.moved
        self.deleted = answer.deleted
        self.left = {agent: self.left.get(agent, now) for agent in answer.left}

    def lines(self) -> tuple[RosterEntry, ...]:
        """The roster as it is sent to the cloud; who was silent for long is forgotten."""
        now = time.monotonic()
        self.heard = {agent: entry for agent, entry in self.heard.items() if now - entry[0] < FORGET_S}
        self.moved = {agent: url for agent, url in self.moved.items() if agent in self.heard or agent in self.elsewhere}
        return tuple(
            RosterEntry(agent=agent, age_s=now - at, visiting=beat.visiting)
            for agent, (at, beat) in sorted(self.heard.items())
        )


T = TypeVar("T")
POLL_S = 0.5


async def while_heard(asking: asyncio.Task[T], agent: str, roster: Roster, ttl_s: float, stop: threading.Event) -> T:
    """The answer that is being asked for; the asking ends with the wait.

    Args:
        asking: for the answer, with a limit of its own.
        agent: which is asked; an agent that says nothing for longer than the TTL is lost, however long it may take,
            and one that has left at once.
        roster: who was heard when.
        ttl_s: see `agent`.
        stop: set when nobody waits for the round any more.

    Raises:
        Cancelled: nobody does.
        Lost: the agent is; or what the asking raised.
    """
    since = time.monotonic()
    try:
        while not asking.done():
            await asyncio.wait({asking}, timeout=min(POLL_S, ttl_s))
            if asking.done():
                break
            if stop.is_set():
                raise Cancelled("nobody waits for this round any more")
            silent = roster.silent_s(agent, since)
            if roster.has_left(agent, since):
                raise Lost(f"agent {agent} has left")
            if silent > ttl_s:
                raise Lost(f"agent {agent} was silent for {silent:.1f} s")
        return asking.result()
    finally:
        if not asking.done():
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
