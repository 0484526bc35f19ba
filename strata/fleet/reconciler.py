"""The fleet's loop: list what runs, report it, get the wanted numbers, start and stop agents and edges.

An agent that will be stopped is announced first. From the next round on the cloud places its seats elsewhere, and it
releases the agent once no round needs it. Only then is the agent stopped, so that no work is lost. An edge is released
once no run needs it, and never stopped before.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from pydantic import ValidationError

from shared.core.errors import StrataError
from shared.core.field_errors import told
from shared.service.api.membership import FleetAgent, FleetOrders, FleetReport
from strata.fleet.plan import Agent, AgentBackend, Plan, plan

log = logging.getLogger(__name__)
DRAIN_S = 120.0
"""Seconds after which a leaving agent is stopped even if a round still needs it."""
STEADY_S = 30.0
"""Seconds without a failure after which an earlier one is forgotten."""
MAX_PAUSE_S = 60.0
MAX_TURNS = 3
MAX_STARTS = 4
"""Most agents that one turn starts: between turns the cloud gets a report and may change the wanted number."""
TROUBLE = (StrataError, OSError, ValidationError)
"""Expected failures: refusals, a system without room for a process or a file, names that a report rejects."""


class Cloud(Protocol):
    """The cloud, as the fleet sees it."""

    def report(self, report: FleetReport) -> FleetOrders:
        """Report the running agents, and return the numbers of devices that the cloud wants.

        Raises:
            StrataError: the cloud does not answer, or another fleet is serving it.
        """


class Fleet:
    """Makes the running agents match the wanted number of devices, one turn at a time.

    Args:
        name: the name under which the cloud knows the fleet.
        backend: starts and stops agents.
        cloud: returns the wanted numbers.
        begins: whether the agents running at the start define the wanted number; an earlier request is then forgotten.
        drain_s: see `DRAIN_S`.
        clock: returns monotonic seconds.
    """

    def __init__(
        self,
        name: str,
        backend: AgentBackend,
        cloud: Cloud,
        *,
        begins: bool = False,
        drain_s: float = DRAIN_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.backend, self.cloud, self.drain_s, self.clock = name, backend, cloud, drain_s, clock
        self.wanted: dict[str, int] = {}
        self.error: str | None = None
        self._begins, self._silent = begins, False
        self._leaving: dict[str, float] = {}  # by name, since when
        self._ending: set[str] = set()  # stopped by the fleet; they leave the set once they no longer run
        self._staying: set[str] = set()  # agents that the fleet has not stopped
        self._running: list[Agent] = []
        self._refused: str | None = None
        self._failures, self._failed_at = 0, 0.0

    def settle(self, ended: Callable[[], bool] = lambda: False) -> None:
        """Take a turn, and further ones while there is news for the cloud, unless the fleet is ending."""
        for _ in range(MAX_TURNS):
            if ended() or not self.turn():
                return

    def turn(self) -> bool:
        """Reconcile once; returns whether the next turn should follow at once (news for the cloud, or more to do).

        Expected failures do not raise: they are reported to the cloud as the fleet's error, and tried again after
        growing pauses.
        """
        listed = self._try(self._list_agents)
        orders = self._exchange()
        if orders is None or not listed:
            return False
        wanted = dict(orders.wanted)
        if orders.wanted_edges is not None:
            wanted |= dict.fromkeys(self._edge_services(), orders.wanted_edges)
        if wanted != self.wanted:
            self.wanted, self.error, self._failures = wanted, None, 0
        return self._apply(frozenset(orders.released))

    def _list_agents(self) -> None:
        """List the running agents. One that ended by itself counts as a failure, which delays starting it again."""
        self._running = self.backend.agents()
        died = sorted(self._staying - self._here())
        self._staying -= set(died)
        if died:
            self._fail(f"{', '.join(died)} ended unexpectedly")

    def _edge_services(self) -> list[str]:
        return [name for name, service in self.backend.services().items() if service.edges]

    def _here(self) -> set[str]:
        return {agent.name for agent in self._running}

    # ---- report

    def _exchange(self) -> FleetOrders | None:
        """Report to the cloud and return its orders, None if the report could not be made or delivered."""
        try:
            report = self._report()
        except ValidationError as error:
            self._fail(f"the running agents cannot be reported: {_reason(error)}")
            return None
        try:
            orders = self.cloud.report(report)
        except (StrataError, OSError) as error:
            log.log(
                logging.DEBUG if self._silent else logging.WARNING,
                "the cloud did not accept the report: %s",
                _reason(error),
            )
            self._silent = True
            return None
        self._begins = self._silent = False
        self._ending -= set(report.left)
        return orders

    def _report(self) -> FleetReport:
        here, why, edge_services = self._here(), self._refused or self.error, self._edge_services()
        services = {name: found for name, found in self.backend.services().items() if not found.edges}
        agents = [agent for agent in self._running if agent.service in services]
        edges = [agent.name for agent in self._running if agent.service in edge_services]
        return FleetReport(
            fleet=self.name,
            begins=self._begins,
            services={name: found.each if found.exactly else None for name, found in services.items()},
            agents=tuple(FleetAgent(name=a.name, service=a.service, devices=a.devices) for a in agents),
            edges=tuple(edges) if edge_services else None,
            leaving=tuple(sorted(self._leaving.keys() & here)),
            left=tuple(sorted(self._ending - here)),
            wanted={name: number for name, number in self.wanted.items() if name in services},
            wanted_edges=next((self.wanted.get(name) for name in edge_services), None),
            error=why[:2000] if why else None,
        )

    # ---- start and stop

    def _apply(self, released: frozenset[str]) -> bool:
        """Stop and start the agents of the plans; returns whether the next turn should follow at once."""
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
        for name, service in self.backend.services().items():
            if name not in self.wanted:
                continue
            try:
                plans[name] = plan([a for a in self._running if a.service == name], self.wanted[name], service)
            except StrataError as error:
                self._refused = f"{name}: {error.detail}"
        return plans

    def _stop(self, agents: Sequence[Agent], released: frozenset[str]) -> bool:
        """Mark agents as leaving, and stop those released or waited for too long; returns whether any was stopped."""
        now = self.clock()
        self._leaving = {agent.name: self._leaving.get(agent.name, now) for agent in agents}
        due = self._due(agents, released, now)
        self._staying = self._here() - {agent.name for agent in due}
        self._ending -= self._staying
        if not due:
            return False
        news = [agent.name for agent in due if agent.name not in self._ending]
        if news:
            log.info("stopping %s", ", ".join(news))
        self._ending |= set(news)
        return self._try(partial(self.backend.stop, due)) and bool(news)

    def _due(self, agents: Sequence[Agent], released: frozenset[str], now: float) -> list[Agent]:
        """Of the leaving agents, the newest of each service first, those that can be stopped now."""
        due, services, waiting = [], self.backend.services(), set()

        def free(agent: Agent) -> bool:
            waited = not services[agent.service].edges and now - self._leaving[agent.name] > self.drain_s
            return agent.name in released or waited

        needed = {agent.together for agent in agents if agent.together and not free(agent)}
        for agent in agents:
            if free(agent) and agent.service not in waiting and agent.together not in needed:
                due.append(agent)
            elif services[agent.service].newest_first:
                waiting.add(agent.service)
        return due

    def _start(self, devices_to_start: Sequence[tuple[str, int]]) -> bool:
        """Start the first few agents, until one cannot be started; after failures only after growing pauses.

        Returns whether more agents should be started at once.
        """
        if self._failures and self.clock() - self._failed_at < min(2.0**self._failures, MAX_PAUSE_S):
            return False
        if not self._try(partial(self.backend.check, len(devices_to_start))):
            return False
        for service, devices in devices_to_start[:MAX_STARTS]:
            log.info("starting one of %s, devices: %s", service, devices)
            if not self._try(partial(self._start_one, service, devices)):
                return False
        return len(devices_to_start) > MAX_STARTS

    def _start_one(self, service: str, devices: int) -> None:
        self._staying.add(self.backend.start(service, devices))

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
    """The message of an error, in one line."""
    if isinstance(error, StrataError):
        return error.detail
    if isinstance(error, ValidationError):
        return told(error)
    return f"{type(error).__name__}: {error}"
