"""Registration of an agent with the cloud, and its heartbeats to edges, beside training."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from device_agent.device_host import DeviceHost
from device_agent.metrics import AgentMetrics
from shared.core.errors import StrataError
from shared.core.validation import ID
from shared.runtime.background import Repeating
from shared.runtime.logs import log_event
from shared.service.api.membership import (
    AgentHeartbeat,
    AgentHeartbeatAnswer,
    AgentRegistration,
    AgentRegistrationAnswer,
)
from shared.service.auth import Network, inside
from shared.service.client import Caller
from shared.service.retry import pause_s

log = logging.getLogger(__name__)
FORGET_EDGE_S = 60.0
"""Seconds after its last order for which an edge other than the home edge still receives heartbeats."""


def agent_id(state_dir: Path) -> str:
    """The agent's id, drawn once and kept in its own folder: it survives restarts and a new container."""
    path = state_dir / "agent-id"
    kept = path.read_text(encoding="utf-8", errors="replace").strip() if path.exists() else ""
    if re.fullmatch(ID, kept):
        return kept
    state_dir.mkdir(parents=True, exist_ok=True)
    drawn, part = f"a-{secrets.token_hex(6)}", state_dir / f".agent-id.{os.getpid()}.part"
    part.write_text(drawn, encoding="ascii")
    part.replace(path)
    return drawn


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

    Attributes:
        heartbeat_edge_url: URL of the heartbeat edge; empty until there is one.
        edges: by URL, the orders of the edges that gave this agent work.
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
    ) -> None:
        self.caller, self.cloud_url, self.registration = caller, cloud_url, registration
        self.heartbeat, self.every_s, self.networks = heartbeat, every_s, networks
        self.host, self.heartbeat_edge_url, self.metrics = host, "", metrics
        self.edges: dict[str, _Orders] = {}
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
    def working_for(self, edge_url: str) -> Iterator[None]:
        """While this lasts, and for a while after it, the edge at this URL receives heartbeats."""
        if not self._may_hear(edge_url):
            if edge_url:
                log.warning("an order names an edge outside the allowed networks: %s", edge_url[:200])
            yield
            return
        orders = self.edges.setdefault(edge_url, _Orders())
        orders.n += 1
        try:
            yield
        finally:
            orders.n -= 1
            orders.ended_at = time.monotonic()

    def _may_hear(self, url: str) -> bool:
        try:
            parts = urlsplit(url)
            plain = parts.scheme == "http" and parts.username is None and parts.port is not None
        except ValueError:
            return False
        return plain and not (parts.path or parts.query or parts.fragment) and inside(parts.hostname, self.networks)

    # ---- the loops

    def _pause_s(self, failures: int, took_s: float) -> float:
        return pause_s(self.every_s, failures)

    async def _beat_heartbeat_edge(self) -> None:
        """Sends a heartbeat to the heartbeat edge; registers first if there is none, and again after a failure."""
        try:
            self.heartbeat_edge_url = self.heartbeat_edge_url or await self.register()
            if self.heartbeat_edge_url:
                await self._send_heartbeat(self.heartbeat_edge_url)
        except Exception:
            self.heartbeat_edge_url = ""
            raise

    async def register(self) -> str:
        """Registers with the cloud; returns the URL of the heartbeat edge, empty if there is no edge yet."""
        url, kept = f"{self.cloud_url}/agents", await self.host.runs()
        raw = await self.caller.call_json("POST", url, self.registration.model_dump(), limit_s=10, peer="the cloud")
        answer = AgentRegistrationAnswer.model_validate(raw)
        await self._forget(set(kept) - set(answer.runs))
        return answer.edge_url

    async def _forget(self, runs: set[str]) -> None:
        for run_id in sorted(runs):
            log_event("run.deleted", run=run_id)
            await self.host.forget(run_id)

    async def _beat_other_edges(self) -> None:
        now = time.monotonic()
        self.edges = {
            url: orders for url, orders in self.edges.items() if orders.n or now - orders.ended_at < FORGET_EDGE_S
        }
        others = [url for url in self.edges if url != self.heartbeat_edge_url]
        await asyncio.gather(*(self._send_heartbeat_if_reachable(url) for url in others))

    async def _send_heartbeat(self, url: str) -> None:
        payload, outcome = self.heartbeat().model_dump(), "failed"
        try:
            raw = await self.caller.call_json("POST", f"{url}/heartbeats", payload, limit_s=5, peer=f"edge {url}")
            outcome = "answered"
        finally:
            self.metrics.heartbeats.labels(outcome).inc()
        deleted = set(AgentHeartbeatAnswer.model_validate(raw).deleted)
        await self._forget(deleted - self._forgotten)
        self._forgotten |= deleted

    async def _send_heartbeat_if_reachable(self, url: str) -> None:
        try:
            await self._send_heartbeat(url)
        except StrataError as error:
            log.debug("no heartbeat to edge %s: %s", url, error.detail)
            if url in self.edges and not self.edges[url].n:
                del self.edges[url]
