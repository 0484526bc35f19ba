"""The metrics of an edge for Prometheus: rounds, exchanges with agents, outcomes of visits, agents that are heard."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from edge_server.roster import Roster
from edge_server.rounds.round_log import RoundLog
from shared.service.metrics import DIRECTIONS, OUTCOMES, REASONS, SIMULATED_S, WALL_S, TierMetrics, one_of

ORDERS = ("visits", "uploads", "other")


class EdgeMetrics(TierMetrics):
    """The metrics of an edge."""

    def __init__(self) -> None:
        super().__init__("edge")
        self.rounds = self.counter("rounds", "Orders of the cloud that ended", outcome=("answered", "failed"))
        self.running = self.gauge("rounds_running", "Orders of the cloud that are worked on")
        self.round_seconds = self.histogram("round_seconds", "Wall seconds of requests of the cloud", WALL_S)
        self.round_simulated = self.histogram(
            "round_simulated_seconds",
            "Simulated seconds of answered requests, the cloud's link left out",
            SIMULATED_S,
        )
        self.visits = self.counter("visits", "Tasks of answered requests", outcome=OUTCOMES)
        self.visit_simulated = self.histogram("visit_simulated_seconds", "Simulated seconds of tasks", SIMULATED_S)
        self.failures = self.counter("failures", "Contributions that answered requests lost", reason=REASONS)
        self.link_bytes = self.counter("link_bytes", "Bytes on devices' modelled links", direction=DIRECTIONS)
        self.exchange_seconds = self.histogram(
            "exchange_seconds", "Wall seconds of answered requests to agents", WALL_S, order=ORDERS
        )
        self.socket_bytes = self.counter(
            "socket_bytes", "Bodies of requests and answers on the sockets to agents", direction=DIRECTIONS
        )
        self.heartbeats = self.counter("heartbeats", "Heartbeats of agents")

    def watch(self, roster: Roster, ttl_s: float) -> None:
        """Adds gauges that are read when they are scraped: agents that are heard, and the orders that wait at them."""
        self.shown("agents", "Agents heard within the TTL, here", lambda: len(roster.fresh(ttl_s)))
        self.shown(
            "orders_waiting",
            "Orders that run or wait at those agents, by their heartbeats",
            lambda: sum(beat.waiting for beat in roster.fresh(ttl_s)),
        )

    def exchanged(self, what: str, sent: int, received: int, wall_s: float) -> None:
        """Counts an order that an agent has answered."""
        self.exchange_seconds.labels(one_of(what, ORDERS)).observe(wall_s)
        self.socket_bytes.labels("down").inc(sent)
        self.socket_bytes.labels("up").inc(received)

    @contextmanager
    def one_round(self) -> Iterator[None]:
        """Counts an order of the cloud and measures it until it is answered or has failed."""
        began, outcome = time.monotonic(), "failed"
        with self.running.track_inprogress():
            try:
                yield
                outcome = "answered"
            finally:
                self.rounds.labels(outcome).inc()
                self.round_seconds.observe(time.monotonic() - began)

    def noted(self, log: RoundLog) -> None:
        """Counts the visits and failures of an answered order."""
        self.round_simulated.observe(log.simulated_s)
        for outcome, n in Counter(one_of(visit.outcome, OUTCOMES) for visit in log.visits).items():
            self.visits.labels(outcome).inc(n)
        for visit in log.visits:
            self.visit_simulated.observe(visit.simulated_s)
        self.link_bytes.labels("down").inc(sum(visit.down_bytes for visit in log.visits))
        self.link_bytes.labels("up").inc(sum(visit.up_bytes for visit in log.visits))
        for reason, n in Counter(one_of(failure.reason, REASONS) for failure in log.failures).items():
            self.failures.labels(reason).inc(n)
