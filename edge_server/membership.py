"""How an edge belongs to the cloud: registration and heartbeats, apart from rounds."""

from __future__ import annotations

from edge_server.roster import Roster
from edge_server.round_handler import RoundHandler
from shared.runtime.background import Repeating
from shared.service.api.membership import EdgeHeartbeat, EdgeRegistration, EdgeRegistrationAnswer, HeartbeatAnswer
from shared.service.client import Caller
from shared.service.retry import pause_s


class Membership:
    """The edge's registration with the cloud and its heartbeats.

    Args:
        caller: to the cloud.
        cloud_url: of the cloud.
        hello: what the edge says of itself.
        roster: whom it hears.
        every_s: seconds between heartbeats.
        desk: learns the edge's address, and which runs were deleted while the edge was away.
    """

    def __init__(
        self,
        caller: Caller,
        cloud_url: str,
        hello: EdgeRegistration,
        roster: Roster,
        every_s: float,
        desk: RoundHandler,
    ) -> None:
        self.caller, self.cloud_url, self.hello, self.handler = caller, cloud_url, hello, desk
        self.roster = roster
        self.registered = False
        self._forgotten: set[str] = set()
        self._beating = Repeating(lambda failures, _: pause_s(every_s, failures), self._turn, "no word with the cloud")

    def start(self) -> None:
        """Begin to register and beat."""
        self._beating.start()

    async def stop(self) -> None:
        """End it."""
        await self._beating.stop()

    async def _turn(self) -> None:
        try:
            await self._once()
        except Exception:
            self.registered = False
            raise

    async def _once(self) -> None:
        if not self.registered:
            await self._register()
        beat = EdgeHeartbeat(edge=self.hello.edge, roster=self.roster.entries()).model_dump()
        raw = await self.caller.call_json("POST", f"{self.cloud_url}/heartbeats", beat, limit_s=5, who="the cloud")
        answer = HeartbeatAnswer.model_validate(raw)
        self.roster.update(answer)
        await self._forget(set(answer.deleted) - self._forgotten)
        self._forgotten |= set(answer.deleted)

    async def _register(self) -> None:
        url, kept = f"{self.cloud_url}/edges", await self.handler.runs()
        raw = await self.caller.call_json("POST", url, self.hello.model_dump(), limit_s=10, who="the cloud")
        welcome = EdgeRegistrationAnswer.model_validate(raw)
        self.handler.known_as(welcome.url)
        await self._forget(kept - set(welcome.runs))
        self.registered = True

    async def _forget(self, runs: set[str]) -> None:
        for run_id in sorted(runs):
            await self.handler.forget(run_id)
