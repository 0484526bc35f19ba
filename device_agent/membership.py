"""How an agent belongs: it registers with the cloud and beats to the edges, apart from training."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from shared.errors import StrataError
from shared.tiers import AgentBeat, AgentHello, AgentWelcome
from shared.transport import Caller, backoff

log = logging.getLogger(__name__)
FORGET_EDGE_S = 60.0


def agent_id(state_dir: Path) -> str:
    """The id in the agent's own folder, drawn once: it survives restarts and re-creation of the container."""
    path = state_dir / "agent-id"
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    state_dir.mkdir(parents=True, exist_ok=True)
    drawn = f"a-{secrets.token_hex(6)}"
    path.write_text(drawn, encoding="ascii")
    return drawn


class Membership:
    """Registration and heartbeats.

    Args:
        caller: to cloud and edges.
        cloud_url: of the cloud.
        hello: what the agent says of itself.
        beat: what it does now.
        every_s: seconds between heartbeats.
    """

    def __init__(
        self, caller: Caller, cloud_url: str, hello: AgentHello, beat: Callable[[], AgentBeat], every_s: float
    ) -> None:
        self.caller, self.cloud_url, self.hello, self.beat, self.every_s = (
            caller,
            cloud_url,
            hello,
            beat,
            every_s,
        )
        self.home = ""
        self.edges: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to register and beat."""
        self._task = asyncio.create_task(self._forever())

    async def stop(self) -> None:
        """End it."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def met(self, edge_url: str) -> None:
        """An edge gave us work: it hears from us for a while."""
        self.edges[edge_url] = time.monotonic()

    async def _forever(self) -> None:
        failures = 0
        while True:
            try:
                if not self.home:
                    self.home = await self.register()
                if self.home:
                    await self._beat_all()
                failures = 0
            except StrataError as error:
                failures += 1
                self.home = ""
                log.log(
                    logging.WARNING if failures == 1 else logging.DEBUG, "not registered: %s", error.detail
                )
            except Exception:
                failures += 1
                self.home = ""
                log.exception("registration failed")
            await asyncio.sleep(self.every_s if not failures else max(backoff(failures), self.every_s))

    async def register(self) -> str:
        """Say hello; the answer is the edge that hears our heartbeats, empty if there is none yet."""
        url = f"{self.cloud_url}/agents"
        raw = await self.caller.call_json("POST", url, self.hello.model_dump(), limit_s=10, who="the cloud")
        return AgentWelcome.model_validate(raw).edge_url

    async def _beat_all(self) -> None:
        now = time.monotonic()
        self.edges = {url: met for url, met in self.edges.items() if now - met < FORGET_EDGE_S}
        payload = self.beat().model_dump()
        others = [self._beat_other(url, payload) for url in self.edges if url != self.home]
        await asyncio.gather(self._beat(self.home, payload), *others)

    async def _beat(self, url: str, payload: object) -> None:
        await self.caller.call_json("POST", f"{url}/heartbeats", payload, limit_s=5, who=f"edge {url}")

    async def _beat_other(self, url: str, payload: object) -> None:
        try:
            await self._beat(url, payload)
        except StrataError:
            self.edges.pop(url, None)
