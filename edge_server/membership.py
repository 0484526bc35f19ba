"""How an edge belongs to the cloud: registration and heartbeats, apart from rounds."""

from __future__ import annotations

import asyncio
import logging

from edge_server.roster import Roster
from edge_server.round_handler import RoundHandler
from shared.core.errors import StrataError
from shared.service.api.membership import EdgeHeartbeat, EdgeRegistration, EdgeRegistrationAnswer, HeartbeatAnswer
from shared.service.client import Caller
from shared.service.retry import pause_s

log = logging.getLogger(__name__)


class Membership:
    """Registers the edge with the cloud and sends its heartbeats.

    Args:
        caller: the HTTP client to the cloud.
        cloud_url: address of the cloud.
        registration: what the edge reports of itself.
        roster: the agents that the edge hears; every heartbeat carries it.
        every_s: seconds between heartbeats.
        handler: gets the edge's address, and forgets runs that were deleted.
    """

    def __init__(
        self,
        caller: Caller,
        cloud_url: str,
        registration: EdgeRegistration,
        roster: Roster,
        every_s: float,
        handler: RoundHandler,
    ) -> None:
        self.caller, self.cloud_url, self.registration, self.handler = caller, cloud_url, registration, handler
        self.roster, self.every_s = roster, every_s
        self.registered = False
        self._forgotten: set[str] = set()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts to register and to send heartbeats."""
        self._task = asyncio.create_task(self._forever())

    async def stop(self) -> None:
        """Ends the heartbeats."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _forever(self) -> None:
        failures = 0
        while True:
            try:
                await self._once()
                failures = 0
            except StrataError as error:
                failures += 1
                self.registered = False
                log.log(
                    logging.WARNING if failures == 1 else logging.DEBUG,
                    "the cloud cannot be reached: %s",
                    error.detail,
                )
            except Exception:
                failures += 1
                self.registered = False
                log.exception("heartbeat failed")
            await asyncio.sleep(pause_s(self.every_s, failures))

    async def _once(self) -> None:
        if not self.registered:
            await self._register()
        beat = EdgeHeartbeat(edge=self.registration.edge, roster=self.roster.entries()).model_dump()
        raw = await self.caller.call_json("POST", f"{self.cloud_url}/heartbeats", beat, limit_s=5, who="the cloud")
        answer = HeartbeatAnswer.model_validate(raw)
        self.roster.update(answer)
        await self._forget(set(answer.deleted) - self._forgotten)
        self._forgotten |= set(answer.deleted)

    async def _register(self) -> None:
        url, kept = f"{self.cloud_url}/edges", await self.handler.states.runs()
        raw = await self.caller.call_json("POST", url, self.registration.model_dump(), limit_s=10, who="the cloud")
        answer = EdgeRegistrationAnswer.model_validate(raw)
        self.handler.own_url = answer.url
        await self._forget(kept - set(answer.runs))
        self.registered = True

    async def _forget(self, runs: set[str]) -> None:
        for run_id in sorted(runs):
            await self.handler.states.forget(run_id)
