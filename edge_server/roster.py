"""When this edge last heard of each agent. Liveness by the wall clock; nothing here decides a result."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from shared.core.errors import Lost, NotFound, TooMany
from shared.runtime.cpu_use import CpuUse
from shared.service.api.membership import MAX_AGENTS, AgentHeartbeat, HeartbeatAnswer, RosterEntry

FORGET_S = 600.0
"""An agent that was silent for longer leaves the roster."""


@dataclass
class Roster:
    """When each agent was last heard.

    Attributes:
        heard: by agent, when its last heartbeat came here (on its clock), and the heartbeat.
        awaited: how many answers are awaited of each agent: of these the cloud reports what it hears elsewhere.
        elsewhere: by such an agent, when another edge last heard it, as the cloud reports.
        unknown: agents that the cloud does not know.
        moved: the new addresses of agents that came back at another one, as the cloud reports.
        deleted: runs that were deleted lately, as the cloud reports.
        stopped: awaited agents that were stopped on purpose, and when the cloud first reported so.
        strangers: processes whose agents another process has registered since, as the cloud reports.
        lacking: by agent that lacks something, since when (on its clock).
        clock: monotonic seconds.
        wall: seconds since the epoch; agents' clocks are compared to it.
    """

    heard: dict[str, tuple[float, AgentHeartbeat]] = field(default_factory=dict)
    awaited: Counter[str] = field(default_factory=Counter)
    elsewhere: dict[str, float] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)
    deleted: tuple[str, ...] = ()
    stopped: dict[str, float] = field(default_factory=dict)
    strangers: frozenset[str] = frozenset()
    lacking: dict[str, float] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time

    def record_heartbeat(self, beat: AgentHeartbeat) -> bool:
        """Notes a heartbeat; returns whether it is the first one of its agent.

        Raises:
            NotFound: the cloud does not know this agent, or this process of it (any more); it should register again.
            TooMany: `MAX_AGENTS` others were heard lately.
        """
        if beat.agent not in self.heard and len(self.heard) >= MAX_AGENTS:
            raise TooMany(f"{len(self.heard)} agents were heard lately, the limit is {MAX_AGENTS}")
        if beat.process and beat.process in self.strangers:
            raise NotFound(f"another process has registered as agent {beat.agent}: this one should register again")
        first = beat.agent not in self.heard
        self.heard[beat.agent] = (self.clock(), beat)
        self._note_condition(beat)
        if beat.agent in self.unknown:
            self.unknown.discard(beat.agent)
            raise NotFound(f"the cloud does not know agent {beat.agent}: it should register again")
        return first

    def _note_condition(self, beat: AgentHeartbeat) -> None:
        self.lacking = {agent: since for agent, since in self.lacking.items() if agent != beat.agent or beat.lacks}
        if beat.lacks:
            self.lacking.setdefault(beat.agent, self.clock())

    def cpu_of(self, agent: str) -> CpuUse | None:
        """The CPUs of an agent's container, as its last heartbeat says; None without a limit."""
        return self.heard[agent][1].cpu if agent in self.heard else None

    def fresh(self, ttl_s: float) -> list[AgentHeartbeat]:
        """The last heartbeats of the agents that were heard here within the last `ttl_s` seconds."""
        since = self.clock() - ttl_s
        return [beat for at, beat in list(self.heard.values()) if at >= since]

    def silent_s(self, agent: str, since: float) -> float:
        """Seconds without a heartbeat of an agent, counted from `since` (on its clock) at the earliest."""
        here = self.heard[agent][0] if agent in self.heard else since
        return self.clock() - max(here, self.elsewhere.get(agent, since), since)

    def has_left(self, agent: str, since: float) -> bool:
        """Whether the agent left after `since`. (One that left earlier must have registered again.)"""
        return self.stopped.get(agent, since) > since

    def check_alive(self, agent: str, since: float, ttl_s: float) -> None:
        """Checks an agent from which an answer has been awaited since `since` (on its clock).

        Raises:
            Lost: it has left, or for longer than `ttl_s` it was silent or has lacked what it needs.
        """
        silent = self.silent_s(agent, since)
        if self.has_left(agent, since):
            raise Lost(f"agent {agent} has left")
        if silent > ttl_s:
            raise Lost(f"agent {agent} was silent for {silent:.1f} s")
        if agent in self.lacking and self.clock() - self.lacking[agent] > ttl_s:
            raise Lost(f"agent {agent} lacks what it needs: {self.heard[agent][1].lacks}")

    @contextmanager
    def awaiting(self, agent: str) -> Iterator[None]:
        """In this block an answer of the agent is awaited, which may send its heartbeats to another edge."""
        self.awaited[agent] += 1
        try:
            yield
        finally:
            self.awaited = self.awaited - Counter([agent])

    def update(self, answer: HeartbeatAnswer) -> None:
        """Takes over what the cloud reports in its answer to this edge's heartbeat."""
        now = self.clock()
        self.unknown, self.strangers = set(answer.unknown), frozenset(answer.strangers)
        self.elsewhere = {agent: now - age for agent, age in answer.heard.items()}
        self.moved |= answer.moved
        self.deleted = answer.deleted
        self.stopped = {agent: self.stopped.get(agent, now) for agent in answer.left}

    def entries(self) -> tuple[RosterEntry, ...]:
        """The roster as it is sent to the cloud, without the agents that were silent for long."""
        now, wall = self.clock(), self.wall()
        self.heard = {agent: entry for agent, entry in self.heard.items() if now - entry[0] < FORGET_S}
        self.lacking = {agent: since for agent, since in self.lacking.items() if agent in self.heard}
        self.moved = {agent: url for agent, url in self.moved.items() if agent in self.heard or agent in self.awaited}
        return tuple(
            RosterEntry(
                agent=agent,
                age_s=now - at,
                visiting=beat.visiting,
                process=beat.process,
                lacks=beat.lacks,
                ahead_s=None if beat.clock_s is None else beat.clock_s + now - at - wall,
            )
            for agent, (at, beat) in sorted(self.heard.items())
        )
