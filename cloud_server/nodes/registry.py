"""The registered nodes, their addresses, and which are alive. It never affects a result."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Iterable

from cloud_server.nodes.liveness import AgentEntry, EdgeEntry, LastSeen, StateChange, StateChanges
from shared.core.errors import Forbidden, NotFound, StrataError
from shared.service.api.membership import (
    AgentRegistration,
    EdgeHeartbeat,
    EdgeRegistration,
    HeartbeatAnswer,
    NonceAnswer,
)
from shared.service.api.nodes import AgentInfo, EdgeInfo, State
from shared.service.auth import Network, inside
from shared.service.client import Caller
from shared.storage import redis_keys
from shared.storage.key_value import Batch, Store, StoreUnavailable

log = logging.getLogger(__name__)
KEEP_S = 3600.0
"""Seconds for which a silent node stays registered."""
CALL_BACK_S = 5.0
"""Longest wait for the nonce of a node that registers, in seconds."""
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
    """

    def __init__(
        self,
        store: Store,
        caller: Caller,
        networks: list[Network],
        ttl_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store, self.caller, self.networks, self.ttl_s, self.clock = store, caller, networks, ttl_s, clock
        self.agents: dict[str, AgentEntry] = {}
        self.edges: dict[str, EdgeEntry] = {}
        self.seen_agents: dict[str, LastSeen] = {}
        self.seen_edges: dict[str, LastSeen] = {}
        self.moved_at: dict[str, float] = {}
        self._leaving: tuple[frozenset[str], float] = (frozenset(), 0.0)
        self.began_at = self.changed_at = self.clock()
        self._changes = StateChanges()
        self._written: dict[tuple[str, str], float] = {}

    async def load(self) -> None:
        """Read the nodes that an earlier cloud process knew.

        They count as heard just now and have one TTL to send a heartbeat, so that no agent loses its seats by a restart
        of the cloud. Some may be gone for long, so a node gets nothing new before it is heard.
        """
        agents, edges = await self.store.scan(redis_keys.CLOUD_AGENTS), await self.store.scan(redis_keys.CLOUD_EDGES)
        now = self.clock()
        for agent in map(AgentEntry.model_validate_json, agents.values()):
            if agent.agent not in self.agents:
                known = LastSeen(now, self.ttl_s, heard_by_this_process=False)
                self.agents[agent.agent], self.seen_agents[agent.agent] = agent, known
        for edge in map(EdgeEntry.model_validate_json, edges.values()):
            if edge.edge not in self.edges:
                known = LastSeen(now, self.ttl_s, heard_by_this_process=False)
                self.edges[edge.edge], self.seen_edges[edge.edge] = edge, known

    # ---- registration

    async def register_agent(self, registration: AgentRegistration, source: str | None) -> str:
        """Register an agent at the source address of its request; returns the URL of the edge for its heartbeats."""
        entry = AgentEntry(
            agent=registration.agent,
            name=registration.name,
            url=await self._called_back(source, registration.port, registration.nonce),
            devices=registration.devices,
            profile=registration.profile,
        )
        if entry.agent in self.agents:  # what a user has set outlasts a registration
            known = self.agents[entry.agent]
            entry = entry.replace(online=known.online, given_profile=known.given_profile)
        if self.agents.get(entry.agent) != entry:
            log.info("agent %s (%s) at %s hosts up to %s devices", entry.agent, entry.name, entry.url, entry.devices)
            self.changed_at = self.clock()
            self._note_move(self.agents.get(entry.agent), entry)
        if entry.agent in self.agents and self.agents[entry.agent].left:
            del self.seen_agents[entry.agent]  # one that left on purpose and comes back is not revived
        self.agents[entry.agent] = entry
        _heard(self.seen_agents, entry.agent, self.clock(), self.ttl_s)
        await self.store.put(redis_keys.cloud_agent(entry.agent), entry.model_dump_json().encode(), KEEP_S)
        return self._heartbeat_edge(entry.agent)

    async def register_edge(self, registration: EdgeRegistration, source: str | None) -> str:
        """Register an edge at the source address of its request; returns its URL."""
        entry = EdgeEntry(
            edge=registration.edge, url=await self._called_back(source, registration.port, registration.nonce)
        )
        if self.edges.get(entry.edge) != entry:
            log.info("edge %s at %s", entry.edge, entry.url)
            self.changed_at = self.clock()
        self.edges[entry.edge] = entry
        _heard(self.seen_edges, entry.edge, self.clock(), self.ttl_s)
        await self.store.put(redis_keys.cloud_edge(entry.edge), entry.model_dump_json().encode(), KEEP_S)
        return entry.url

    async def _called_back(self, source: str | None, port: int, nonce: str) -> str:
        """The URL of the node that registers, once the process there has shown the nonce of the registration.

        Raises:
            Forbidden: it is outside the allowed networks, or another process answers there.
        """
        if not inside(source, self.networks):
            raise Forbidden(f"{source} is outside the allowed networks")
        url = f"http://[{source}]:{port}" if ":" in str(source) else f"http://{source}:{port}"
        try:
            raw = await self.caller.call_json("GET", f"{url}/nonce", limit_s=CALL_BACK_S, peer=url)
            shown = NonceAnswer.model_validate(raw).nonce
        except (StrataError, ValueError) as error:
            raise Forbidden(f"{url} did not show its nonce: {error}") from None
        if not hmac.compare_digest(shown.encode(), nonce.encode()):
            raise Forbidden(f"{url} did not send this registration")
        return url

    def _note_move(self, before: AgentEntry | None, entry: AgentEntry) -> None:
        if before is not None and before.url != entry.url:
            self.moved_at[entry.agent] = self.clock()

    def _moved(self, now: float) -> dict[str, str]:
        """The URLs of agents that came back at another address in the last `MOVED_S` seconds."""
        self.moved_at = {agent: at for agent, at in self.moved_at.items() if now - at < MOVED_S}
        return {agent: self.agents[agent].url for agent in sorted(self.moved_at) if agent in self.agents}

    def _heartbeat_edge(self, agent: str) -> str:
        names = self.live_edges()
        if not names:
            return ""
        spread = int.from_bytes(hashlib.sha256(agent.encode()).digest()[:4], "big")
        return self.edges[names[spread % len(names)]].url

    # ---- heartbeats

    async def record_heartbeat(self, beat: EdgeHeartbeat) -> HeartbeatAnswer:
        """Take the heartbeat of an edge, with the agents that it heard; returns what the edge cannot know itself.

        Raises:
            NotFound: the edge is not registered; it should register again.
        """
        if beat.edge not in self.edges:
            raise NotFound(f"edge {beat.edge} is not registered")
        now = self.clock()
        self.seen_edges[beat.edge].heard(now)
        for line in beat.roster:
            seen = self.seen_agents.get(line.agent)
            if seen is not None and now - line.age_s >= seen.at:
                seen.heard(now - line.age_s)
                seen.edge, seen.visiting = beat.edge, line.visiting
        self._forget_silent(now)
        await self._store_liveness(beat)
        fresh = {line.agent for line in beat.roster if line.age_s < self.ttl_s}
        others = {
            agent: seen for agent, seen in self.seen_agents.items() if seen.heard_by_this_process and agent not in fresh
        }
        elsewhere = {agent: now - seen.at for agent, seen in others.items()}
        heard = {agent: round(age, 3) for agent, age in elsewhere.items() if age < self.ttl_s}
        return HeartbeatAnswer(
            unknown=tuple(sorted(fresh - self.agents.keys())),
            heard=heard,
            moved=self._moved(now),
            left=tuple(sorted(agent for agent, entry in self.agents.items() if entry.left)),
        )

    async def _store_liveness(self, beat: EdgeHeartbeat) -> None:
        """Write signs of life with a TTL to Redis, for observers and for a restarted cloud."""
        now = self.clock()
        batch = self._refresh_alive_key(Batch(), now, ("edge", beat.edge), redis_keys.cloud_edge_alive(beat.edge), b"1")
        if self._claim_refresh(now, ("edge entry", beat.edge), KEEP_S):
            batch.put(redis_keys.cloud_edge(beat.edge), self.edges[beat.edge].model_dump_json().encode(), KEEP_S)
        for line in beat.roster:
            agent = self.agents.get(line.agent)
            if agent is None or line.age_s >= self.ttl_s:
                continue
            seen = json.dumps({"edge": beat.edge, "visiting": line.visiting}).encode()
            self._refresh_alive_key(batch, now, ("agent", line.agent), redis_keys.cloud_agent_alive(line.agent), seen)
            if self._claim_refresh(now, ("agent entry", line.agent), KEEP_S):
                batch.put(redis_keys.cloud_agent(line.agent), agent.model_dump_json().encode(), KEEP_S)
        if not batch.puts:
            return
        try:
            await self.store.commit(batch)
        except StoreUnavailable as error:  # liveness itself does not depend on the store
            self._written.clear()
            log.warning("signs of life are not written: %s", error.detail)

    def _refresh_alive_key(self, batch: Batch, now: float, what: tuple[str, str], key: str, value: bytes) -> Batch:
        return batch.put(key, value, self.ttl_s) if self._claim_refresh(now, what, self.ttl_s) else batch

    def _claim_refresh(self, now: float, what: tuple[str, str], ttl_s: float) -> bool:
        """Whether a key with a TTL is to be written again; if so, the caller must write it: it counts as written now.

        A key is refreshed four times in its TTL, not at every one of thousands of heartbeats a second.
        """
        due = now - self._written.get(what, -ttl_s) >= ttl_s / 4
        if due:
            self._written[what] = now
        return due

    def _forget_silent(self, now: float) -> None:
        """Remove nodes that were silent for more than `KEEP_S` seconds."""
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

    def mark_leaving(self, agents: Iterable[str], for_s: float) -> None:
        """Mark exactly these agents as about to be stopped, for so many seconds: the fleet may be gone by then."""
        self._leaving = frozenset(agents), self.clock() + for_s

    def is_leaving(self, agent: str) -> bool:
        """Whether an agent is about to be stopped, or was."""
        leaving, until = self._leaving
        left = agent in self.agents and self.agents[agent].left
        return left or (agent in leaving and self.clock() < until)

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
            await self.store.put(redis_keys.cloud_agent(agent), entry.model_dump_json().encode(), KEEP_S)
            written = entry
        if agent in self.agents and written is not None:
            self.agents[agent] = written
            self.changed_at = self.clock()

    # ---- what is alive

    def changes(self) -> list[StateChange]:
        """The nodes whose state changed since the last call."""
        now = self.clock()
        states = {("agent", name): self._state(name, now) for name in self.seen_agents}
        return self._changes.since_last_check(
            states | {("edge", name): seen.state(now) for name, seen in self.seen_edges.items()}
        )

    def _state(self, agent: str, now: float) -> State:
        entry, heard = self.agents[agent], self.seen_agents[agent].state(now)
        if entry.left:
            return "left"
        if heard in ("suspect", "lost"):
            return heard
        if self.is_leaving(agent):
            return "leaving"
        return heard if entry.online else "offline"

    def agent_is_live(self, agent: str) -> bool:
        """Whether the agent was heard within the TTL, and not stopped since."""
        return agent in self.agents and not self.agents[agent].left and self.seen_agents[agent].is_live(self.clock())

    def edge_is_live(self, edge: str) -> bool:
        """Whether the edge was heard within the TTL."""
        return edge in self.seen_edges and self.seen_edges[edge].is_live(self.clock())

    def agent_lost_s(self, agent: str) -> float:
        """Seconds since an agent was lost, 0 if it is live; one never heard counts from the start of the cloud."""
        return self._lost_s(self.seen_agents.get(agent))

    def edge_lost_s(self, edge: str) -> float:
        """Seconds for which an edge has been lost, 0 if it is live; see `agent_lost_s`."""
        return self._lost_s(self.seen_edges.get(edge))

    def _lost_s(self, seen: LastSeen | None) -> float:
        heard_at = seen.at if seen else self.began_at
        return max(self.clock() - heard_at - self.ttl_s, 0.0)

    def live_edges(self) -> list[str]:
        """Names of the live edges that this process has heard, sorted."""
        return sorted(
            name for name in self.edges if self.edge_is_live(name) and self.seen_edges[name].heard_by_this_process
        )

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

    def n_devices(self) -> int:
        """The number of devices that the live agents can host."""
        return sum(entry.devices for entry in self.live_agents())

    def agent_info(self, agent: str, seats: tuple[int, ...] = ()) -> AgentInfo:
        """An agent as the API shows it, with its seats.

        Raises:
            NotFound: no such agent.
        """
        entry, seen = self.agents.get(agent), self.seen_agents.get(agent)
        if entry is None or seen is None:
            raise NotFound(f"no agent {agent!r}")
        return AgentInfo(
            agent=agent,
            name=entry.name,
            state=self._state(agent, self.clock()),
            last_seen_s=round(self.clock() - seen.at, 3),
            devices=entry.devices,
            profile=entry.effective_profile,
            own_profile=entry.profile,
            edge=seen.edge,
            seats=seats,
            visiting=seen.visiting,
            online=entry.online,
        )

    def edge_info(self, edge: str) -> EdgeInfo:
        """An edge as the API shows it."""
        seen = self.seen_edges[edge]
        return EdgeInfo(
            edge=edge,
            url=self.edges[edge].url,
            state=seen.state(self.clock()),
            last_seen_s=round(self.clock() - seen.at, 3),
            n_agents=sum(seen.edge == edge and self.agent_is_live(name) for name, seen in self.seen_agents.items()),
        )


def _heard(seen: dict[str, LastSeen], name: str, now: float, ttl_s: float) -> None:
    """Note a registration as a sign of life; no edge has heard the agent's new process yet."""
    known = seen.setdefault(name, LastSeen(now, ttl_s))
    known.heard(now)
    known.edge, known.visiting = None, None
