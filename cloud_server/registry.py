"""Who is alive. Wall time and addresses only: nothing here decides a result."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import time
from dataclasses import dataclass
from typing import Literal

from shared import keys
from shared.api import AgentInfo, EdgeInfo
from shared.errors import Forbidden, NotFound, StrataError
from shared.records import Record
from shared.service import Network
from shared.store import Batch, Store
from shared.tiers import AgentHello, BeatAnswer, EdgeBeat, EdgeHello, NonceAnswer
from shared.transport import Caller, inside

log = logging.getLogger(__name__)
KEEP_S = 3600.0
"""How long somebody silent is remembered."""
CALL_BACK_S = 5.0


class AgentEntry(Record):
    """A registered agent."""

    agent: str
    name: str
    url: str
    devices: int
    profile: str


class EdgeEntry(Record):
    """A registered edge."""

    edge: str
    url: str


@dataclass
class Seen:
    """When somebody was last heard (monotonic), by whom, and what it did."""

    at: float
    edge: str | None = None
    visiting: int | None = None


class Registry:
    """Edges and agents, written through to Redis with a TTL."""

    def __init__(self, store: Store, caller: Caller, networks: list[Network], ttl_s: float) -> None:
        self.store, self.caller, self.networks, self.ttl_s = store, caller, networks, ttl_s
        self.agents: dict[str, AgentEntry] = {}
        self.edges: dict[str, EdgeEntry] = {}
        self.seen_agents: dict[str, Seen] = {}
        self.seen_edges: dict[str, Seen] = {}
        self.began_at = self.changed_at = time.monotonic()

    async def load(self) -> None:
        """Read what an earlier cloud process knew; they count as just seen and must beat within the TTL."""
        agents, edges = await self.store.scan(keys.CLOUD_AGENTS), await self.store.scan(keys.CLOUD_EDGES)
        now = time.monotonic()
        for agent in map(AgentEntry.model_validate_json, agents.values()):
            if agent.agent not in self.agents:
                self.agents[agent.agent], self.seen_agents[agent.agent] = agent, Seen(now)
        for edge in map(EdgeEntry.model_validate_json, edges.values()):
            if edge.edge not in self.edges:
                self.edges[edge.edge], self.seen_edges[edge.edge] = edge, Seen(now)

    # ---- registration

    async def greet_agent(self, hello: AgentHello, source: str | None) -> str:
        """Register an agent at the address from which it asked; answers with the edge that hears its heartbeats."""
        entry = AgentEntry(
            agent=hello.agent,
            name=hello.name,
            url=await self._called_back(source, hello.port, hello.nonce),
            devices=hello.devices,
            profile=hello.profile,
        )
        if self.agents.get(entry.agent) != entry:
            log.info("agent %s (%s) at %s with room for %s", entry.agent, entry.name, entry.url, entry.devices)
            self.changed_at = time.monotonic()
        self.agents[entry.agent] = entry
        self.seen_agents[entry.agent] = Seen(time.monotonic())
        await self.store.put(keys.cloud_agent(entry.agent), entry.model_dump_json().encode(), KEEP_S)
        return self._hearing_edge(entry.agent)

    async def greet_edge(self, hello: EdgeHello, source: str | None) -> str:
        """Register an edge at the address from which it asked; answers with that address."""
        entry = EdgeEntry(edge=hello.edge, url=await self._called_back(source, hello.port, hello.nonce))
        if self.edges.get(entry.edge) != entry:
            log.info("edge %s at %s", entry.edge, entry.url)
            self.changed_at = time.monotonic()
        self.edges[entry.edge] = entry
        self.seen_edges[entry.edge] = Seen(time.monotonic())
        await self.store.put(keys.cloud_edge(entry.edge), entry.model_dump_json().encode(), KEEP_S)
        return entry.url

    async def _called_back(self, source: str | None, port: int, nonce: str) -> str:
        """The caller's address, once the process there has shown the nonce of the registration.

        Raises:
            Forbidden: outside the allowed networks, or somebody else answers there.
        """
        if not inside(source, self.networks):
            raise Forbidden(f"{source} is outside the allowed networks")
        url = f"http://[{source}]:{port}" if ":" in str(source) else f"http://{source}:{port}"
        try:
            raw = await self.caller.call_json("GET", f"{url}/nonce", limit_s=CALL_BACK_S, who=url)
            shown = NonceAnswer.model_validate(raw).nonce
        except (StrataError, ValueError) as error:
            raise Forbidden(f"{url} could not be asked for its nonce: {error}") from None
        if not hmac.compare_digest(shown.encode(), nonce.encode()):
            raise Forbidden(f"{url} did not send this registration")
        return url

    def _hearing_edge(self, agent: str) -> str:
        names = self.live_edges()
        if not names:
            return ""
        spread = int.from_bytes(hashlib.sha256(agent.encode()).digest()[:4], "big")
        return self.edges[names[spread % len(names)]].url

    # ---- heartbeats

    async def beat(self, beat: EdgeBeat) -> BeatAnswer:
        """An edge is alive, and so are the agents that it heard; answers with what it cannot know itself.

        Raises:
            NotFound: the edge is not registered; it should be again.
        """
        if beat.edge not in self.edges:
            raise NotFound(f"edge {beat.edge} is not registered")
        now = time.monotonic()
        self.seen_edges[beat.edge] = Seen(now)
        for line in beat.roster:
            seen = self.seen_agents.get(line.agent)
            if seen is not None and now - line.age_s >= seen.at:
                self.seen_agents[line.agent] = Seen(now - line.age_s, beat.edge, line.visiting)
        self._forget_silent(now)
        await self._refresh(beat)
        fresh = {line.agent for line in beat.roster if line.age_s < self.ttl_s}
        elsewhere = {a: now - seen.at for a, seen in self.seen_agents.items() if a not in fresh}
        heard = {agent: round(age, 3) for agent, age in elsewhere.items() if age < self.ttl_s}
        return BeatAnswer(unknown=tuple(sorted(fresh - self.agents.keys())), heard=heard)

    async def _refresh(self, beat: EdgeBeat) -> None:
        """Signs of life with a TTL in Redis, for whoever looks from outside and for a restarted cloud."""
        edge = self.edges[beat.edge]
        batch = Batch().put(keys.cloud_edge_alive(beat.edge), b"1", self.ttl_s)
        batch.put(keys.cloud_edge(beat.edge), edge.model_dump_json().encode(), KEEP_S)
        for line in beat.roster:
            agent = self.agents.get(line.agent)
            if agent is not None and line.age_s < self.ttl_s:
                seen = json.dumps({"edge": beat.edge, "visiting": line.visiting}).encode()
                batch.put(keys.cloud_agent_alive(line.agent), seen, self.ttl_s)
                batch.put(keys.cloud_agent(line.agent), agent.model_dump_json().encode(), KEEP_S)
        await self.store.commit(batch)

    def _forget_silent(self, now: float) -> None:
        """Drop who was silent for long: agents come and go, each under an id of its own."""
        for agent in [name for name, seen in self.seen_agents.items() if now - seen.at > KEEP_S]:
            del self.agents[agent], self.seen_agents[agent]
        for edge in [name for name, seen in self.seen_edges.items() if now - seen.at > KEEP_S]:
            del self.edges[edge], self.seen_edges[edge]

    # ---- who is there

    def _state(self, seen: Seen | None) -> Literal["alive", "suspect", "lost"]:
        silent = time.monotonic() - seen.at if seen else self.ttl_s + 1
        if silent > self.ttl_s:
            return "lost"
        return "suspect" if silent > self.ttl_s / 2 else "alive"

    def agent_is_live(self, agent: str) -> bool:
        """Heard within the TTL."""
        return self._state(self.seen_agents.get(agent)) != "lost"

    def edge_is_live(self, edge: str) -> bool:
        """Heard within the TTL."""
        return self._state(self.seen_edges.get(edge)) != "lost"

    def lost_since(self, agent: str) -> float | None:
        """When (monotonic) the TTL of an agent ran out, None if it is alive; of one never heard, when we began."""
        if self.agent_is_live(agent):
            return None
        seen = self.seen_agents.get(agent)
        return (seen.at if seen else self.began_at) + self.ttl_s

    def live_edges(self) -> list[str]:
        """Names of the live edges, sorted."""
        return sorted(name for name in self.edges if self.edge_is_live(name))

    def live_agents(self) -> list[AgentEntry]:
        """The live agents, sorted by (profile, id)."""
        live = [entry for name, entry in self.agents.items() if self.agent_is_live(name)]
        return sorted(live, key=lambda entry: (entry.profile, entry.agent))

    def n_devices(self) -> int:
        """Room of the live agents together."""
        return sum(entry.devices for entry in self.live_agents())

    def agent_info(self, agent: str, seats: tuple[int, ...] = ()) -> AgentInfo:
        """An agent as the API shows it.

        Raises:
            NotFound: no such agent.
        """
        entry, seen = self.agents.get(agent), self.seen_agents.get(agent)
        if entry is None or seen is None:
            raise NotFound(f"no device {agent!r}")
        return AgentInfo(
            agent=agent,
            name=entry.name,
            state=self._state(seen),
            last_seen_s=round(time.monotonic() - seen.at, 3),
            devices=entry.devices,
            profile=entry.profile,
            edge=seen.edge,
            seats=seats,
            visiting=seen.visiting,
        )

    def edge_info(self, edge: str) -> EdgeInfo:
        """An edge as the API shows it."""
        seen = self.seen_edges[edge]
        return EdgeInfo(
            edge=edge,
            url=self.edges[edge].url,
            state=self._state(seen),
            last_seen_s=round(time.monotonic() - seen.at, 3),
            n_agents=sum(seen.edge == edge and self.agent_is_live(name) for name, seen in self.seen_agents.items()),
        )
