"""How an agent belongs: it registers with the cloud and beats to the edges, apart from training."""

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
"""How long after its last order an edge that is not our home goes on hearing from us."""


def agent_id(state_dir: Path) -> str:
    """The id in the agent's own folder, drawn once: it survives restarts and re-creation of the container."""
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
    """The orders of an edge: how many run or wait, and when the last one ended (monotonic)."""

    n: int = 0
    ended_at: float = 0.0


class Membership:
    """Registration and heartbeats. The home edge and the others that gave work hear from us independently.

    Args:
        caller: to cloud and edges.
        cloud_url: of the cloud.
        hello: what the agent says of itself.
        beat: what it does now.
        every_s: seconds between heartbeats.
        networks: where an edge may be; a caller cannot make us send heartbeats elsewhere.
        host: keeps states of runs; of those deleted while we were away they go when we register.
        metrics: told of heartbeats.
    """

    def __init__(
        self,
        caller: Caller,
        cloud_url: str,
        hello: AgentRegistration,
        beat: Callable[[], AgentHeartbeat],
        every_s: float,
        networks: list[Network],
        host: DeviceHost,
        metrics: AgentMetrics,
    ) -> None:
        self.caller, self.cloud_url, self.hello = caller, cloud_url, hello
        self.beat, self.every_s, self.networks = beat, every_s, networks
        self.host, self.home, self.metrics = host, "", metrics
        self.edges: dict[str, _Orders] = {}
        self._forgotten: set[str] = set()
        self._loops = (
            Repeating(self._pause_s, self._belong, "not registered"),
            Repeating(self._pause_s, self._beat_others, "heartbeat"),
        )

    def start(self) -> None:
        """Begin to register and beat."""
        for loop in self._loops:
            loop.start()

    async def stop(self) -> None:
        """End it."""
        await asyncio.gather(*(loop.stop() for loop in self._loops))

    @contextmanager
    def working_for(self, edge_url: str) -> Iterator[None]:
        """An edge gave us work: it hears from us until that is done, and for a while."""
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

    async def _belong(self) -> None:
        """Beat to the home edge; without one, or where that fails, register anew."""
        try:
            self.home = self.home or await self.register()
            if self.home:
                await self._beat(self.home)
        except Exception:
            self.home = ""
            raise

    async def register(self) -> str:
        """Say hello; the answer is the edge that hears our heartbeats, empty if there is none yet."""
        url, kept = f"{self.cloud_url}/agents", await self.host.runs()
        raw = await self.caller.call_json("POST", url, self.hello.model_dump(), limit_s=10, who="the cloud")
        welcome = AgentRegistrationAnswer.model_validate(raw)
        await self._forget(set(kept) - set(welcome.runs))
        return welcome.edge_url

    async def _forget(self, runs: set[str]) -> None:
        for run_id in sorted(runs):
            log_event("run.deleted", run=run_id)
            await self.host.forget(run_id)

    async def _beat_others(self) -> None:
        now = time.monotonic()
        self.edges = {
            url: orders for url, orders in self.edges.items() if orders.n or now - orders.ended_at < FORGET_EDGE_S
        }
        others = [url for url in self.edges if url != self.home]
        await asyncio.gather(*(self._beat_other(url) for url in others))

    async def _beat(self, url: str) -> None:
        payload, outcome = self.beat().model_dump(), "failed"
        try:
            raw = await self.caller.call_json("POST", f"{url}/heartbeats", payload, limit_s=5, who=f"edge {url}")
            outcome = "answered"
        finally:
            self.metrics.heartbeats.labels(outcome).inc()
        deleted = set(AgentHeartbeatAnswer.model_validate(raw).deleted)
        await self._forget(deleted - self._forgotten)
        self._forgotten |= deleted

    async def _beat_other(self, url: str) -> None:
        try:
            await self._beat(url)
        except StrataError as error:
            log.debug("no word with edge %s: %s", url, error.detail)
            if url in self.edges and not self.edges[url].n:
                del self.edges[url]
