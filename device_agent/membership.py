"""Registration of an agent with the cloud, and its heartbeats to edges, beside training."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from device_agent.device_host import DeviceHost
from device_agent.metrics import AgentMetrics
from shared.core.addresses import Network, inside
from shared.core.bounds import LARGEST_EDGES
from shared.core.errors import StrataError
from shared.core.validation import ID
from shared.identity.names import CLOUD, edge_identity
from shared.identity.revocations import Revocations
from shared.runtime.background import Repeating
from shared.runtime.logs import log_event
from shared.service.api.membership import (
    AgentHeartbeat,
    AgentHeartbeatAnswer,
    AgentRegistration,
    AgentRegistrationAnswer,
)
from shared.service.client import Caller
from shared.service.needs import Needs, note_clock
from shared.service.retry import pause_s
from shared.storage.kept_id import kept_id

log = logging.getLogger(__name__)
FORGET_EDGE_S = 60.0
"""Seconds after its last order for which an edge other than the home edge still receives heartbeats."""


def agent_id(state_dir: Path, *, durable: bool = True) -> str:
    """The agent's id, drawn once and kept in its own folder: it survives restarts and a new container."""
    return kept_id(state_dir / "agent-id", "a-", durable=durable)


class EdgeAddress(NamedTuple):
    """An edge's name and URL."""

    name: str
    url: str


@dataclass
class _Orders:
    """The orders of an edge: how many run or wait, and the monotonic time at which the last one ended."""

    n: int = 0
    ended_at: float = 0.0


class Membership:
    """Registers an agent and sends its heartbeats.

    The heartbeat edge, which the cloud assigns, always receives heartbeats; every other edge receives them while the
    agent works for it, and `FORGET_EDGE_S` longer. A failure to reach one does not delay the others.

    Args:
        caller: HTTP client for the cloud and edges.
        cloud_url: URL of the cloud.
        registration: what the agent registers with.
        heartbeat: makes the next heartbeat.
        every_s: seconds between heartbeats.
        networks: networks in which edges may be; no order can make the agent send heartbeats elsewhere.
        host: keeps the states of runs; those of runs that were deleted meanwhile are dropped at registration.
        metrics: counts heartbeats.
        revoked: the certificates that are refused, as the cloud last signed them.
        needs: what the agent needs to answer.

    Attributes:
        refusal: why it is not registered, as far as is known; None while it is.
        clock_note: by how much the clock of this machine differs from the cloud's, in words; empty if by little.
        heartbeat_edge: None until there is one.
        edges: the orders of the edges that gave this agent work.
    """

    def __init__(
        self,
        caller: Caller,
        cloud_url: str,
        registration: AgentRegistration,
        heartbeat: Callable[[], AgentHeartbeat],
        every_s: float,
        networks: list[Network],
        host: DeviceHost,
        metrics: AgentMetrics,
        revoked: Revocations,
        needs: Needs,
    ) -> None:
        self.caller, self.cloud_url, self.registration = caller, cloud_url, registration
        self.heartbeat, self.every_s, self.networks = heartbeat, every_s, networks
        self.host, self.metrics, self.revoked, self.needs = host, metrics, revoked, needs
        self.refusal: str | None = None
        self.clock_note = ""
        self.heartbeat_edge: EdgeAddress | None = None
        self.edges: dict[EdgeAddress, _Orders] = {}
        self._forgotten: set[str] = set()
        self._loops = (
            Repeating(self._pause_s, self._beat_heartbeat_edge, "not registered"),
            Repeating(self._pause_s, self._beat_other_edges, "heartbeat"),
        )

    def start(self) -> None:
        """Starts to register and to send heartbeats."""
        for loop in self._loops:
            loop.start()

    async def stop(self) -> None:
        """Stops both loops and waits for their end."""
        await asyncio.gather(*(loop.stop() for loop in self._loops))

    @contextmanager
    def working_for(self, edge: EdgeAddress) -> Iterator[None]:
        """While this lasts, and for a while after it, this edge receives heartbeats."""
        if not self.may_hear(*edge):
            if edge.url:
                log.warning("a request names an edge outside AGENT_ALLOWED_NETWORKS: %s", edge.url[:200])
            yield
            return
        if edge not in self.edges and len(self.edges) >= LARGEST_EDGES:
            yield
            return
        orders = self.edges.setdefault(edge, _Orders())
        orders.n += 1
        try:
            yield
        finally:
            orders.n -= 1
            orders.ended_at = time.monotonic()

    def may_hear(self, name: str, url: str) -> bool:
        """Whether an edge may be at this address, to which the agent then sends heartbeats."""
        scheme = "https" if self.caller.keys else "http"
        try:
            parts = urlsplit(url)
            plain = parts.scheme == scheme and parts.username is None and parts.port is not None
        except ValueError:
            return False
        if not re.fullmatch(ID, name):
            return False
        return plain and not (parts.path or parts.query or parts.fragment) and inside(parts.hostname, self.networks)

    # ---- the loops

    def _pause_s(self, failures: int, took_s: float) -> float:
        return pause_s(self.every_s, failures)

    async def _beat_heartbeat_edge(self) -> None:
        """Sends a heartbeat to the heartbeat edge; registers first if there is none, and again after a failure."""
        try:
            self.heartbeat_edge = self.heartbeat_edge or await self.register()
            if self.heartbeat_edge:
                await self._send_heartbeat(self.heartbeat_edge)
            self.refusal = None
        except Exception as error:
            self.heartbeat_edge, self.refusal = None, str(error)[:500]
            raise

    async def register(self) -> EdgeAddress | None:
        """Registers with the cloud; returns the heartbeat edge, None if there is no edge yet."""
        url, kept = f"{self.cloud_url}/agents", await self.host.runs()
        raw = await self.caller.call_json("POST", url, self.registration.model_dump(), limit_s=10, peer=CLOUD)
        answer = AgentRegistrationAnswer.model_validate(raw)
        if answer.left_out is not None:
            log.warning("the cloud leaves this agent out of runs: %s", answer.left_out)
        self.clock_note = note_clock(time.time(), answer.clock_s, self.clock_note)
        if answer.cloud_key:
            self.revoked.cloud_key.trust(answer.cloud_key)
        await self._forget(set(kept) - set(answer.runs))
        return EdgeAddress(answer.edge, answer.edge_url) if answer.edge_url else None

    async def _forget(self, runs: set[str]) -> None:
        for run_id in sorted(runs):
            log_event("run.deleted", run=run_id)
            await self.host.forget(run_id)

    async def _beat_other_edges(self) -> None:
        now = time.monotonic()
        self.edges = {
            edge: orders for edge, orders in self.edges.items() if orders.n or now - orders.ended_at < FORGET_EDGE_S
        }
        others = [edge for edge in self.edges if edge != self.heartbeat_edge]
        await asyncio.gather(*(self._send_heartbeat_if_reachable(edge) for edge in others))

    async def _send_heartbeat(self, edge: EdgeAddress) -> None:
        payload, outcome, peer = self.heartbeat().model_dump(), "failed", edge_identity(edge.name)
        try:
            raw = await self.caller.call_json("POST", f"{edge.url}/heartbeats", payload, limit_s=5, peer=peer)
            outcome = "answered"
        finally:
            self.metrics.heartbeats.labels(outcome).inc()
        answer = AgentHeartbeatAnswer.model_validate(raw)
        self.revoked.take(answer.revoked)
        deleted = set(answer.deleted)
        await self._forget(deleted - self._forgotten)
        self._forgotten |= deleted

    async def _send_heartbeat_if_reachable(self, edge: EdgeAddress) -> None:
        try:
            await self._send_heartbeat(edge)
        except StrataError as error:
            log.debug("no heartbeat to edge %s at %s: %s", edge.name, edge.url, error.detail)
            if edge in self.edges and not self.edges[edge].n:
                del self.edges[edge]
