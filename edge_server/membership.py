"""How an edge belongs to the cloud: registration and heartbeats, apart from rounds."""

from __future__ import annotations

import logging

from edge_server.roster import Roster
from edge_server.round_handler import RoundHandler
from shared.identity.names import CLOUD
from shared.identity.revocations import Revocations
from shared.runtime.background import Repeating
from shared.service.api.membership import (
    MAX_MISSING,
    EdgeHeartbeat,
    EdgeRegistration,
    EdgeRegistrationAnswer,
    HeartbeatAnswer,
    process_of,
)
from shared.service.client import Caller
from shared.service.needs import Needs, note_clock
from shared.service.retry import pause_s
from shared.service.reverse.desk import Desk

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
        revoked: the certificates that are refused, as the cloud last signed them.
        needs: what the edge needs to answer; every heartbeat says what it lacks.
        desk: keeps requests for agents that dial out; every heartbeat says which of them do not poll here.

    Attributes:
        refusal: why it is not registered, as far as is known; None while it is.
        clock_note: by how much the clock of this machine differs from the cloud's, in words; empty if by little.
    """

    def __init__(
        self,
        caller: Caller,
        cloud_url: str,
        registration: EdgeRegistration,
        roster: Roster,
        every_s: float,
        handler: RoundHandler,
        revoked: Revocations,
        needs: Needs,
        desk: Desk,
    ) -> None:
        self.caller, self.cloud_url, self.registration, self.handler = caller, cloud_url, registration, handler
        self.roster, self.revoked, self.needs, self.desk = roster, revoked, needs, desk
        self.registered = False
        self.refusal: str | None = None
        self.clock_note = ""
        self._process = process_of(registration.nonce)
        self._forgotten: set[str] = set()
        self._beating = Repeating(
            lambda failures, _: pause_s(every_s, failures), self._turn, "not registered with the cloud"
        )

    def start(self) -> None:
        """Starts to register and to send heartbeats."""
        self._beating.start()

    async def stop(self) -> None:
        """Ends the heartbeats."""
        await self._beating.stop()

    def send_heartbeat_now(self) -> None:
        """Sends the next heartbeat at once: the cloud then knows of a new agent without delay."""
        self._beating.wake()

    async def _turn(self) -> None:
        try:
            await self._once()
            self.refusal = None
        except Exception as error:
            self.registered, self.refusal = False, str(error)[:500]
            raise

    async def _once(self) -> None:
        if not self.registered:
            await self._register()
        beat = EdgeHeartbeat(
            edge=self.registration.edge,
            roster=self.roster.entries(),
            missing=self.desk.missing()[:MAX_MISSING],
            awaits=tuple(sorted(self.roster.awaited)),
            revoked=self.revoked.issue,
            process=self._process,
            lacks=self.needs.lacks,
            clock_s=max(self.roster.wall(), 0.0),
        ).model_dump()
        raw = await self.caller.call_json("POST", f"{self.cloud_url}/heartbeats", beat, limit_s=5, peer=CLOUD)
        answer = HeartbeatAnswer.model_validate(raw)
        self.roster.update(answer)
        self.revoked.take(answer.revoked)
        await self._forget(set(answer.deleted) - self._forgotten)
        self._forgotten |= set(answer.deleted)

    async def _register(self) -> None:
        url, kept = f"{self.cloud_url}/edges", await self.handler.states.runs()
        raw = await self.caller.call_json("POST", url, self.registration.model_dump(), limit_s=10, peer=CLOUD)
        answer = EdgeRegistrationAnswer.model_validate(raw)
        if answer.cloud_key:
            self.revoked.cloud_key.trust(answer.cloud_key)
        if answer.left_out is not None:
            log.warning("the cloud leaves this edge out of runs: %s", answer.left_out)
        self.clock_note = note_clock(self.roster.wall(), answer.clock_s, self.clock_note)
        self.handler.own_url = answer.url
        await self._forget(kept - set(answer.runs))
        self.registered = True

    async def _forget(self, runs: set[str]) -> None:
        for run_id in sorted(runs):
            self.handler.flights.close(run_id.__eq__)
            await self.handler.states.forget(run_id)
