"""The fleet's loop: look at what runs, report it, hear what is wanted, make it so.

An agent that is to go is announced first. The cloud takes its seats from the next round on and releases it once no
round needs it: so nothing is lost, and nobody waits for it. Only then it is stopped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from pydantic import ValidationError

from shared.core.errors import StrataError
from shared.service.api.membership import FleetAgent, FleetOrders, FleetReport
from strata.fleet.plan import Agent, AgentBackend, Plan, plan

log = logging.getLogger(__name__)
DRAIN_S = 120.0
"""How long a leaving agent may be needed by a round before it is stopped all the same."""
STEADY_S = 30.0
"""How long all must have gone well before an earlier failure is forgotten."""
MOST_PAUSE_S = 60.0
MOST_TURNS = 3
MOST_STARTS = 4
"""How many agents one turn starts: in between the cloud hears what runs, and may want something else by now."""
TROUBLE = (StrataError, OSError, ValidationError)
"""What goes wrong out there: refusals, a system without room for a process or a file, names that no report may have."""


class Cloud(Protocol):
    """Whom the fleet asks."""

    def report(self, report: FleetReport) -> FleetOrders:
        """Say what runs, hear what is wanted.

        Raises:
            StrataError: the cloud does not answer, or lets another fleet serve.
        """


class Fleet:
    """Makes what runs equal what is wanted, one look at a time.

    Args:
        name: under which the cloud knows it.
        hands: start and stop agents.
        cloud: says what is wanted.
        begins: whether the number at the start is its own, so that what was wanted of an earlier fleet is forgotten.
        drain_s: see `DRAIN_S`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        hands: AgentBackend,
        cloud: Cloud,
        *,
        begins: bool = False,
        drain_s: float = DRAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.hands, self.cloud, self.drain_s, self.clock = name, hands, cloud, drain_s, clock
        self.wanted: dict[str, int] = {}
        self.error: str | None = None
        self._begins, self._silent = begins, False
        self._leaving: dict[str, float] = {}  # by name, since when
        self._ending: set[str] = set()  # told to end; gone once they no longer run
        self._staying: set[str] = set()  # those that nobody told to end
        self._running: list[Agent] = []
        self._refused: str | None = None
        self._failures, self._failed_at = 0, 0.0

    def settle(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Look, and again where there is news that the cloud should hear at once, unless the fleet is to end."""
        for _ in range(MOST_TURNS):
            if ended() or not self.turn():
                return

    def turn(self) -> bool:
        """One look; answers whether the next should follow at once, since there is news for the cloud or more to do.

        Never raises for what goes wrong out there: that is told to the cloud as the fleet's error, and tried again
        later, and ever later.
        """
        looked = self._try(self._look)
        orders = self._exchange()
        if orders is None or not looked:
            return False
        if orders.wanted != self.wanted:
            self.wanted, self.error, self._failures = dict(orders.wanted), None, 0
        return self._make_it_so(frozenset(orders.released))

    def _look(self) -> None:
        """See what runs. An agent that dies by itself must not be started again and again without a pause."""
        self._running = self.hands.agents()
        died = sorted(self._staying - self._here())
        self._staying -= set(died)
        if died:
            self._fail(f"{', '.join(died)} ended, and nobody told it to")

    def _here(self) -> set[str]:
        return {agent.name for agent in self._running}

    # ---- what is said

    def _exchange(self) -> FleetOrders | None:
        """Report; None if it could not be said, or the cloud did not take it."""
        try:
            report = self._report()
        except ValidationError as error:
            self._fail(f"what runs cannot be reported: {_reason(error)}")
            return None
        try:
            orders = self.cloud.report(report)
        except (StrataError, OSError) as error:
            log.log(logging.DEBUG if self._silent else logging.WARNING, "the cloud takes no report: %s", _reason(error))
            self._silent = True
            return None
        self._begins = self._silent = False
        self._ending -= set(report.left)
        return orders

    def _report(self) -> FleetReport:
        here, why = self._here(), self._refused or self.error
        return FleetReport(
            fleet=self.name,
            begins=self._begins,
            services={name: found.each if found.exactly else None for name, found in self.hands.services().items()},
            agents=tuple(FleetAgent(name=a.name, service=a.service, devices=a.devices) for a in self._running),
            leaving=tuple(sorted(self._leaving.keys() & here)),
            left=tuple(sorted(self._ending - here)),
            wanted=self.wanted,
            error=why[:2000] if why else None,
        )

    # ---- what is done

    def _make_it_so(self, released: frozenset[str]) -> bool:
        """Stop and start what the plans say; answers whether the next look should follow at once."""
        plans = self._plans()
        stop = [agent for found in plans.values() for agent in found.stop]
        start = [(service, devices) for service, found in plans.items() for devices in found.start]
        if not stop and not start and self.clock() - self._failed_at > STEADY_S:
            self.error, self._failures = None, 0
        news = {agent.name for agent in stop} != self._leaving.keys() & self._here()
        stopped = self._stop(stop, released)
        more = self._start(start)
        return news or stopped or more

    def _plans(self) -> dict[str, Plan]:
        plans, self._refused = {}, None
        for name, service in self.hands.services().items():
            if name not in self.wanted:
                continue
            try:
                plans[name] = plan([a for a in self._running if a.service == name], self.wanted[name], service)
            except StrataError as error:
                self._refused = f"{name}: {error.detail}"
        return plans

    def _stop(self, agents: Sequence[Agent], released: frozenset[str]) -> bool:
        """Let agents leave, and stop those that may go or have been waited for; answers whether some were stopped."""
        now = self.clock()
        self._leaving = {agent.name: self._leaving.get(agent.name, now) for agent in agents}
        due = [agent for agent in agents if agent.name in released or now - self._leaving[agent.name] > self.drain_s]
        self._staying = self._here() - {agent.name for agent in due}
        self._ending -= self._staying
        if not due:
            return False
        log.info("stopping %s", ", ".join(agent.name for agent in due))
        self._ending |= {agent.name for agent in due}
        return self._try(partial(self.hands.stop, due))

    def _start(self, rooms: Sequence[tuple[str, int]]) -> bool:
        """Start the first few agents, up to one that cannot be started; after failures later and later.

        Answers whether some are left that should follow at once.
        """
        if self._failures and self.clock() - self._failed_at < min(2.0**self._failures, MOST_PAUSE_S):
            return False
        if not self._try(partial(self.hands.check, len(rooms))):
            return False
        for service, devices in rooms[:MOST_STARTS]:
            log.info("starting an agent of %s, devices: %s", service, devices)
            if not self._try(partial(self._start_one, service, devices)):
                return False
        return len(rooms) > MOST_STARTS

    def _start_one(self, service: str, devices: int) -> None:
        self._staying.add(self.hands.start(service, devices))

    def _try(self, act: Callable[[], None]) -> bool:
        try:
            act()
        except TROUBLE as error:
            self._fail(_reason(error))
            return False
        return True

    def _fail(self, why: str) -> None:
        if why != self.error:
            log.warning("%s", why)
        self.error, self._failures, self._failed_at = why, self._failures + 1, self.clock()


def _reason(error: Exception) -> str:
    """What to tell of an error, in one line."""
    if isinstance(error, StrataError):
        return error.detail
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}"
