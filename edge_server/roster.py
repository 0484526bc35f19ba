"""The agents that this edge hears, and how the edge belongs to the cloud. Wall time and liveness only."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.errors import NotFound, StrataError
from shared.patience import pause_s
from shared.tiers import AgentBeat, BeatAnswer, EdgeBeat, EdgeHello, EdgeWelcome, RosterLine
from shared.transport import Caller

log = logging.getLogger(__name__)
FORGET_S = 600.0


@dataclass
class Roster:
    """When which agent was last heard.

    Attributes:
        heard: here, and what it said.
        elsewhere: at other edges, as the cloud told.
        unknown: whom the cloud does not know.
        moved: where agents are found that came back at another address, as the cloud told.
    """

    heard: dict[str, tuple[float, AgentBeat]] = field(default_factory=dict)
    elsewhere: dict[str, float] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)
    moved: dict[str, str] = field(default_factory=dict)

    def beat(self, beat: AgentBeat) -> None:
        """Note a heartbeat.

        Raises:
            NotFound: the cloud does not know this agent (any more); it should register again.
        """
        self.heard[beat.agent] = (time.monotonic(), beat)
        if beat.agent in self.unknown:
            self.unknown.discard(beat.agent)
            raise NotFound(f"the cloud does not know agent {beat.agent}: it should register again")

    def silent_s(self, agent: str, since: float) -> float:
        """Seconds without a word from an agent, counted from `since` (monotonic) at the earliest."""
        here = self.heard[agent][0] if agent in self.heard else since
        return time.monotonic() - max(here, self.elsewhere.get(agent, since), since)

    def told(self, answer: BeatAnswer) -> None:
        """Note what the cloud answered to the roster."""
        now = time.monotonic()
        self.unknown = set(answer.unknown)
        self.elsewhere = {agent: now - age for agent, age in answer.heard.items()}
        self.moved = answer.moved

    def lines(self) -> tuple[RosterLine, ...]:
        """The roster as it is sent to the cloud; who was silent for long is forgotten."""
        now = time.monotonic()
        self.heard = {agent: entry for agent, entry in self.heard.items() if now - entry[0] < FORGET_S}
        return tuple(
            RosterLine(agent=agent, age_s=now - at, visiting=beat.visiting)
            for agent, (at, beat) in sorted(self.heard.items())
        )


class Membership:
    """The edge's registration with the cloud and its heartbeats."""

    def __init__(self, caller: Caller, cloud_url: str, hello: EdgeHello, roster: Roster, every_s: float) -> None:
        self.caller, self.cloud_url, self.hello = caller, cloud_url, hello
        self.roster, self.every_s = roster, every_s
        self.registered = False
        self.on_welcome: Callable[[str], None] = lambda url: None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to register and beat."""
        self._task = asyncio.create_task(self._forever())

    async def stop(self) -> None:
        """End it."""
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
                    "no word with the cloud: %s",
                    error.detail,
                )
            except Exception:
                failures += 1
                self.registered = False
                log.exception("heartbeat failed")
            await asyncio.sleep(pause_s(self.every_s, failures))

    async def _once(self) -> None:
        if not self.registered:
            hello = self.hello.model_dump()
            url = f"{self.cloud_url}/edges"
            raw = await self.caller.call_json("POST", url, hello, limit_s=10, who="the cloud")
            self.on_welcome(EdgeWelcome.model_validate(raw).url)
            self.registered = True
        beat = EdgeBeat(edge=self.hello.edge, roster=self.roster.lines()).model_dump()
        raw = await self.caller.call_json("POST", f"{self.cloud_url}/heartbeats", beat, limit_s=5, who="the cloud")
        self.roster.told(BeatAnswer.model_validate(raw))
