"""The registered nodes, their addresses, and which are alive. It never affects a result."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping

from cloud_server.nodes.call_back import CallBack
from cloud_server.nodes.liveness import AgentEntry, EdgeEntry, LastSeen, StateChange, StateChanges, require_profile
from cloud_server.nodes.other_protocols import OtherProtocols
from cloud_server.nodes.stored_nodes import KEEP_S, StoredNodes
from shared.core.addresses import Network
from shared.core.errors import NotFound, TooMany
from shared.identity.names import agent_identity, edge_identity
from shared.service.api.membership import (
    MAX_AGENTS,
    AgentRegistration,
    EdgeHeartbeat,
    EdgeRegistration,
    HeartbeatAnswer,
    process_of,
)
from shared.service.api.nodes import State
from shared.service.client import Caller
from shared.simulation import PROFILES
from shared.storage import redis_keys
from shared.storage.key_value import Store

log = logging.getLogger(__name__)
MOVED_S = 120.0
"""Seconds for which edges are sent the address of an agent that came back at another one."""


class Registry:
    """Registered edges and agents, written through to Redis with a TTL.

    Args:
        store: keeps the nodes for the next cloud process.
        caller: calls back nodes that register.
        networks: in which nodes may be.
        ttl_s: a node that is silent for longer is lost.
        clock: monotonic seconds; decides which nodes are alive.
        wall: seconds since the epoch; nodes' clocks are compared to it.

    Attributes:
        store_lost: whether the cloud's own Redis does not answer: then nodes are not left out for lack of theirs.
    """

    def __init__(
        self,
        store: Store,
        caller: Caller,
        networks: list[Network],
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.caller, self.ttl_s, self.clock, self.wall = caller, ttl_s, clock, wall
        self.call_back, self.store_lost, self.others = CallBack(caller, networks), False, OtherProtocols(clock)
        self.agents: dict[str, AgentEntry] = {}
        self.edges: dict[str, EdgeEntry] = {}
        self.seen_agents: dict[str, LastSeen] = {}
        self.seen_edges: dict[str, LastSeen] = {}
        self.moved_at: dict[str, float] = {}
        self._leaving: tuple[frozenset[str], frozenset[str], float] = (frozenset(), frozenset(), 0.0)
        self.began_at = self.changed_at = self._forgot_at = self.clock()
        self._changes = StateChanges()
        self.stored = StoredNodes(store, ttl_s, clock)

    async def load(self) -> None:
        """Read the nodes that an earlier cloud process knew.

        They count as heard just now and have one TTL to send a heartbeat, so that no agent loses its seats by a restart
        of the cloud. Some may be gone for long, so a node gets nothing new before it is heard.
        """
        now = self.clock()
        for agent in await self.stored.entries(redis_keys.CLOUD_AGENTS, AgentEntry):
            if agent.effective_profile not in PROFILES:
                log.warning("agent %s has the unknown profile %r: it must register again", agent.name, agent.profile)
            elif agent.agent not in self.agents:
                known = LastSeen(now, self.ttl_s, heard_by_this_process=False)
                known.leave_out(agent.left_out)
                self.agents[agent.agent], self.seen_agents[agent.agent] = agent, known
        for edge in await self.stored.entries(redis_keys.CLOUD_EDGES, EdgeEntry):
            if edge.edge not in self.edges:
                known = LastSeen(now, self.ttl_s, heard_by_this_process=False)
                known.leave_out(edge.left_out)
                self.edges[edge.edge], self.seen_edges[edge.edge] = edge, known

    # ---- registration

    async def register_agent(self, registration: AgentRegistration, source: str | None) -> EdgeEntry | None:
        """Register an agent at the source address of its request; returns the edge for its heartbeats, if any lives.

        Raises:
            BadInput: the catalogue has no profile of that name; the message names the nearest.
            Forbidden: it is outside the allowed networks, or another process answers there.
            Conflict: another process is that agent.
            TooMany: `MAX_AGENTS` are registered.
        """
        _require_room(self.agents, registration.agent)
        node = agent_identity(registration.agent)
        url = await self.call_back.url_of(node, source, registration)
        if (held := self.agents.get(registration.agent)) and self.seen_agents[held.agent].is_live(self.clock()):
            await self.call_back.check_alone(node, url, held.url, held.process, registration.nonce)
        require_profile(registration.profile)
        entry = AgentEntry(
            agent=registration.agent,
            name=registration.name,
            url=url,
            devices=registration.devices,
            profile=registration.profile,
            versions=registration.versions,
            plugins=registration.plugins,
            process=process_of(registration.nonce),
            max_body_bytes=registration.max_body_bytes,
        )
        if entry.agent in self.agents:  # what a user has set outlasts a registration
            known = self.agents[entry.agent]
            entry = entry.replace(online=known.online, given_profile=known.given_profile)
        if self.agents.get(entry.agent) != entry:
            log.info("agent %s (%s) at %s hosts up to %s devices", entry.agent, entry.name, entry.url, entry.devices)
            _warn_if_left_out("agent", entry.agent, entry.left_out)
            self.changed_at = self.clock()
            self._note_move(self.agents.get(entry.agent), entry)
        if entry.agent in self.agents and self.agents[entry.agent].left:
            del self.seen_agents[entry.agent]  # one that left on purpose and comes back is not revived
        self.agents[entry.agent] = entry
        _heard(self.seen_agents, entry.agent, self.clock(), self.ttl_s).leave_out(entry.left_out)
        await self.stored.put(redis_keys.cloud_agent(entry.agent), entry)
        return self._heartbeat_edge(entry.agent)

    async def register_edge(self, registration: EdgeRegistration, source: str | None) -> str:
        """Register an edge at the source address of its request; returns its URL. Raises as `register_agent`."""
        _require_room(self.edges, registration.edge)
        node = edge_identity(registration.edge)
        url = self.call_back.url_for_agents(node, source, registration)
        called_at = await self.call_back.url_of(node, source, registration)
        if (held := self.edges.get(registration.edge)) and self.seen_edges[held.edge].is_live(self.clock()):
            await self.call_back.check_alone(node, called_at, held.own_url, held.process, registration.nonce)
        entry = EdgeEntry(
            edge=registration.edge,
            name=registration.name or registration.edge,
            url=url,
            called_at="" if called_at == url else called_at,
            versions=registration.versions,
            plugins=registration.plugins,
            process=process_of(registration.nonce),
            max_body_bytes=registration.max_body_bytes,
        )
        if self.edges.get(entry.edge) != entry:
            log.info("edge %s at %s", entry.edge, entry.url)
            _warn_if_left_out("edge", entry.edge, entry.left_out)
            self.changed_at = self.clock()
        self.edges[entry.edge] = entry
        _heard(self.seen_edges, entry.edge, self.clock(), self.ttl_s).leave_out(entry.left_out)
        await self.stored.put(redis_keys.cloud_edge(entry.edge), entry)
        return entry.url

    def _note_move(self, before: AgentEntry | None, entry: AgentEntry) -> None:
        if before is not None and before.url != entry.url:
            self.moved_at[entry.agent] = self.clock()

    def _moved(self, now: float) -> dict[str, str]:
        """The URLs of agents that came back at another address in the last `MOVED_S` seconds."""
        self.moved_at = {agent: at for agent, at in self.moved_at.items() if now - at < MOVED_S}
        return {agent: self.agents[agent].url for agent in sorted(self.moved_at) if agent in self.agents}

    def _heartbeat_edge(self, agent: str) -> EdgeEntry | None:
        names = self.live_edges()
        if not names:
            return None
        spread = int.from_bytes(hashlib.sha256(agent.encode()).digest()[:4], "big")
        return self.edges[names[spread % len(names)]]

    # ---- heartbeats

    async def record_heartbeat(self, beat: EdgeHeartbeat) -> HeartbeatAnswer:
        """Take the heartbeat of an edge, with the agents that it heard; returns what the edge cannot know itself.

        Raises:
            NotFound: the edge, or this process of it, is not registered; it should register again.
        """
        if beat.edge not in self.edges:
            raise NotFound(f"edge {beat.edge} is not registered")
        if _is_stranger(beat.process, self.edges[beat.edge]):
            raise NotFound(f"another process has registered as edge {beat.edge}: this one should register again")
        now, strangers = self.clock(), set[str]()
        ahead_s = None if beat.clock_s is None else beat.clock_s - self.wall()
        self.seen_edges[beat.edge].heard(now)
        self.seen_edges[beat.edge].note(now, "" if self.store_lost else beat.lacks, ahead_s)
        for line in beat.roster:
            if _is_stranger(line.process, self.agents.get(line.agent)):
                strangers.add(line.process)
            elif seen := self.seen_agents.get(line.agent):
                seen.heard_by(beat.edge, now - line.age_s, line.visiting)
                seen.note(now, line.lacks, None if line.ahead_s is None else line.ahead_s + (ahead_s or 0.0))
        self._forget_silent(now)
        await self.stored.refresh(beat, self.edges[beat.edge], self.agents)
        fresh = {line.agent for line in beat.roster if line.age_s < self.ttl_s}
        awaited = {agent: self.seen_agents[agent] for agent in beat.awaits if agent in self.agents}
        elsewhere = {name: seen for name, seen in awaited.items() if seen.heard_by_this_process and name not in fresh}
        return HeartbeatAnswer(
            unknown=tuple(sorted(fresh - self.agents.keys())),
            strangers=tuple(sorted(strangers)),
            heard={agent: round(now - seen.at, 3) for agent, seen in elsewhere.items() if now - seen.at < self.ttl_s},
            moved=self._moved(now),
            left=tuple(sorted(agent for agent in awaited if self.agents[agent].left)),
        )

    def _forget_silent(self, now: float) -> None:
        """Remove nodes that were silent for more than `KEEP_S` seconds, not at each of thousands of heartbeats."""
        if now - self._forgot_at < self.ttl_s:
            return
        self._forgot_at = now
        for agent in [name for name, seen in self.seen_agents.items() if now - seen.at > KEEP_S]:
            del self.agents[agent], self.seen_agents[agent]
        for edge in [name for name, seen in self.seen_edges.items() if now - seen.at > KEEP_S]:
            del self.edges[edge], self.seen_edges[edge]

    # ---- leaving and coming back on purpose

    def agents_by_name(self, names: Iterable[str]) -> dict[str, list[str]]:
        """By name, the ids of the agents of that name that have not left, alive or not."""
        found: dict[str, list[str]] = {name: [] for name in names}
        for agent, entry in self.agents.items():
            if entry.name in found and not entry.left:
                found[entry.name].append(agent)
        return found

    def mark_leaving(self, agents: Iterable[str], edges: Iterable[str], for_s: float) -> None:
        """Mark exactly these nodes as about to be stopped, for so many seconds: the fleet may be gone by then."""
        self._leaving = frozenset(agents), frozenset(edges), self.clock() + for_s

    def is_leaving(self, agent: str) -> bool:
        """Whether an agent is about to be stopped, or was."""
        leaving, _, until = self._leaving
        left = agent in self.agents and self.agents[agent].left
        return left or (agent in leaving and self.clock() < until)

    def edge_is_leaving(self, edge: str) -> bool:
        """Whether an edge is about to be stopped."""
        _, leaving, until = self._leaving
        return edge in leaving and self.clock() < until

    async def mark_left(self, agent: str) -> None:
        """Note that an agent was stopped on purpose; a new registration brings it back."""
        await self._change(agent, left=True)

    async def change(self, agent: str, **changes: bool | str | None) -> None:
        """Set whether an agent makes visits (`online`), or its profile (`given_profile`), from the next round on.

        Raises:
            NotFound: no such agent.
        """
        if agent not in self.agents:
            raise NotFound(f"no agent {agent!r}")
        await self._change(agent, **changes)

    def is_offline(self, agent: str) -> bool:
        """Whether a user took the agent offline."""
        return agent in self.agents and not self.agents[agent].online

    async def _change(self, agent: str, **changes: bool | str | None) -> None:
        """Change an entry after it is stored; stored again if the agent registered anew meanwhile."""
        written: AgentEntry | None = None
        while agent in self.agents and (entry := self.agents[agent].replace(**changes)) != written:
            await self.stored.put(redis_keys.cloud_agent(agent), entry)
            written = entry
        if agent in self.agents and written is not None:
            self.agents[agent] = written
            self.changed_at = self.clock()

    # ---- what is alive

    def changes(self) -> list[StateChange]:
        """The nodes whose state changed since the last call."""
        now = self.clock()
        states = {("agent", name): self.agent_state(name, now) for name in self.seen_agents}
        return self._changes.since_last_check(
            states | {("edge", name): self.edge_state(name, now) for name in self.seen_edges}
        )

    def agent_state(self, agent: str, now: float) -> State:
        """The state of an agent."""
        entry, heard = self.agents[agent], self.seen_agents[agent].state(now)
        if entry.left:
            return "left"
        if heard in ("suspect", "lost"):
            return heard
        if entry.left_out is not None or self.seen_agents[agent].lack(now):
            return "left_out"
        if self.is_leaving(agent):
            return "leaving"
        return heard if entry.online else "offline"

    def edge_state(self, edge: str, now: float) -> State:
        """The state of an edge."""
        heard = self.seen_edges[edge].state(now)
        out = self.edges[edge].left_out is not None or self.seen_edges[edge].lack(now)
        if heard in ("suspect", "lost"):
            return heard
        return "left_out" if out else "leaving" if self.edge_is_leaving(edge) else heard

    def edge_reason(self, edge: str) -> str | None:
        """Why an edge that is heard takes part in no run, None if it does."""
        return self.edges[edge].left_out or self.seen_edges[edge].lack(self.clock())

    def agent_reason(self, agent: str) -> str | None:
        """Why an agent that is heard takes part in no run, None if it does."""
        return self.agents[agent].left_out or self.seen_agents[agent].lack(self.clock())

    def agent_is_live(self, agent: str) -> bool:
        """Whether the agent was heard within the TTL, not stopped since, and may take part in runs."""
        return agent in self.agents and not self.agents[agent].left and self.seen_agents[agent].takes_part(self.clock())

    def edge_is_live(self, edge: str) -> bool:
        """Whether the edge was heard within the TTL, and may take part in runs."""
        return edge in self.seen_edges and self.seen_edges[edge].takes_part(self.clock())

    def left_out(self) -> str:
        """The first nodes that are heard, but left out of runs, each with the reason; empty if there are none."""
        edges = [(name, why) for name in sorted(self.edges) if (why := self.edge_reason(name))]
        agents = [(entry.name, why) for name, entry in sorted(self.agents.items()) if (why := self.agent_reason(name))]
        heard = [f"edge {name} ({why})" for name, why in edges if self.seen_edges[name].is_live(self.clock())]
        return "; ".join(heard + [f"agent {name} ({why})" for name, why in agents][:3] + self.others.words()[:3])[:500]

    def agent_lost_s(self, agent: str) -> float:
        """Seconds since an agent was lost or left out, 0 if it is live; one never heard: since the cloud's start."""
        return self._lost_s(self.seen_agents.get(agent))

    def edge_lost_s(self, edge: str) -> float:
        """Seconds for which an edge has been lost, 0 if it is live; see `agent_lost_s`."""
        return self._lost_s(self.seen_edges.get(edge))

    def _lost_s(self, seen: LastSeen | None) -> float:
        if seen is not None and (since := seen.out_since(self.clock())) is not None:
            return max(self.clock() - since, 1e-9)
        heard_at = seen.at if seen else self.began_at
        return max(self.clock() - heard_at - self.ttl_s, 0.0)

    def live_edges(self) -> list[str]:
        """Names of the live edges that this process has heard, sorted."""
        return sorted(
            name for name in self.edges if self.edge_is_live(name) and self.seen_edges[name].heard_by_this_process
        )

    def open_edges(self) -> list[str]:
        """The live edges with which a run may begin: those that are not leaving, sorted."""
        return [edge for edge in self.live_edges() if not self.edge_is_leaving(edge)]

    def live_agents(self) -> list[AgentEntry]:
        """The live agents that may take seats (heard, online, not leaving), sorted by (profile, id)."""
        live = [
            entry
            for name, entry in self.agents.items()
            if self.agent_is_live(name)
            and self.seen_agents[name].heard_by_this_process
            and entry.online
            and not self.is_leaving(name)
        ]
        return sorted(live, key=lambda entry: (entry.effective_profile, entry.agent))

    def clocks(self) -> list[tuple[str, str, float]]:
        """The kind and name of each node that is heard, and by how much its clock is ahead of the cloud's."""
        now = self.clock()
        nodes = [("edge", name, seen) for name, seen in self.seen_edges.items()]
        nodes += [("agent", name, seen) for name, seen in self.seen_agents.items()]
        return [(kind, name, s.ahead_s) for kind, name, s in nodes if s.ahead_s is not None and s.is_live(now)]

    def n_devices(self) -> int:
        """The number of devices that the live agents can host."""
        return sum(entry.devices for entry in self.live_agents())


def _require_room(known: Mapping[str, object], name: str) -> None:
    if name not in known and len(known) >= MAX_AGENTS:
        raise TooMany(f"{len(known)} nodes are registered, the limit is {MAX_AGENTS}")


def _heard(seen: dict[str, LastSeen], name: str, now: float, ttl_s: float) -> LastSeen:
    """Note a registration as a sign of life; no edge has heard the agent's new process yet."""
    known = seen.setdefault(name, LastSeen(now, ttl_s))
    known.heard(now)
    known.edge, known.visiting = None, None
    return known


def _is_stranger(process: str, entry: AgentEntry | EdgeEntry | None) -> bool:
    """Whether a process says that it is another one than the one that has registered as its node."""
    return entry is not None and bool(process and entry.process) and process != entry.process


def _warn_if_left_out(kind: str, name: str, reason: str | None) -> None:
    if reason is not None:
        log.warning("%s %s takes part in no run: %s", kind, name, reason)
