"""The Prometheus metrics of an agent: visits, failures, waiting orders, bytes moved, heartbeats."""

from __future__ import annotations

from typing import Any, get_args

from shared.federation.messages import Kind, Outcome
from shared.service.metrics import DIRECTIONS, REASONS, WALL_S, TierMetrics, one_of

KINDS = get_args(Kind)


class AgentMetrics(TierMetrics):
    """The metrics of an agent, summed over its devices."""

    def __init__(self) -> None:
        super().__init__("agent")
        self.begun = self.counter("visits_begun", "Tasks begun")
        self.visits = self.counter("visits", "Tasks that ended", kind=KINDS, outcome=("done", "failed"))
        self.visit_seconds = self.histogram(
            "visit_seconds", "Wall seconds of tasks, waits for the computing thread left out", WALL_S, kind=KINDS
        )
        self.samples = self.counter("trained_samples", "Samples passed through training")
        self.failures = self.counter("failures", "Tasks that failed", reason=REASONS)
        self.testing = self.counter("testing_seconds", "Wall seconds in which models were tested")
        self.socket_bytes = self.counter(
            "socket_bytes", "Bodies of requests and answers that were taken and sent", direction=DIRECTIONS
        )
        self.heartbeats = self.counter("heartbeats", "Heartbeats sent", outcome=("answered", "failed"))

    def visited(self, outcome: Outcome[Any], wall_s: float) -> None:
        """Counts a finished or failed visit and its wall seconds."""
        failure = outcome.failure
        self.visits.labels(outcome.kind, "done" if failure is None else "failed").inc()
        self.visit_seconds.labels(outcome.kind).observe(wall_s)
        self.samples.inc(outcome.n_trained)
        if failure is not None:
            self.failures.labels(one_of(failure.reason, REASONS)).inc()

    def answered(self, received_bytes: int, sent_bytes: int) -> None:
        """Counts the bytes of an order's body and its answer's."""
        self.socket_bytes.labels("down").inc(received_bytes)
        self.socket_bytes.labels("up").inc(sent_bytes)
