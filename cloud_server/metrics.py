"""The cloud's metrics for Prometheus: rounds, bytes, failures, the run that trains, registered nodes, queues."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, get_args

from cloud_server.nodes.infos import agent_info, edge_info
from cloud_server.nodes.registry import Registry
from cloud_server.runs.evaluation import Evaluator
from cloud_server.runs.events import RunEvent
from cloud_server.runs.manager import RunManager
from shared.run_records.runs import FINAL, Status
from shared.service.api.nodes import State
from shared.service.metrics import DIRECTIONS, REASONS, SIMULATED_S, WALL_S, TierMetrics, one_of

STATES = get_args(State)
STATUSES = tuple(status for status in get_args(Status) if status not in FINAL)
WARNINGS = (
    *("node.lost", "node.left_out", "node.refused", "node.clock"),
    *("state.lost", "store.changed", "tracking.failed"),
)
"""Kinds of a run's events that name something to be mended, apart from rounds and their contributions."""
WHERE = ("seat", "edge")
"""Whether the contribution of one seat was lost, or that of an edge with all its seats."""


class CloudMetrics(TierMetrics):
    """Counts the events of runs (`on_event`); shows registered nodes and queues (`watch`)."""

    def __init__(self) -> None:
        super().__init__("cloud")
        self._run = ""
        self._statuses: dict[str, str] = {}
        self._add_round_metrics()
        self._add_run_metrics()
        self.heartbeats = self.counter("heartbeats", "Heartbeats received from edges")
        self.registrations = self.counter("registrations", "Accepted registrations", kind=("agent", "edge"))
        self.exchange_seconds = self.histogram(
            "exchange_seconds", "Wall seconds from a request to an edge until its answer", WALL_S
        )
        self.socket_bytes = self.counter(
            "socket_bytes", "Bytes of request and answer bodies on the sockets to edges", direction=DIRECTIONS
        )

    def _add_round_metrics(self) -> None:
        self.round_seconds = self.histogram("round_seconds", "Wall seconds of committed training rounds", WALL_S)
        self.round_simulated = self.histogram(
            "round_simulated_seconds", "Simulated seconds of committed training rounds", SIMULATED_S
        )
        self.retries = self.counter("round_retries", "Rounds attempted again because the quorum was missed")
        self.visits = self.counter("visits", "Tasks of committed rounds")
        self.updates = self.counter("updates", "Updates used by committed rounds")
        self.failures = self.counter("failures", "Contributions lost in committed rounds", where=WHERE, reason=REASONS)
        self.link_bytes = self.counter(
            "link_bytes",
            "Bytes of committed rounds on the modelled links",
            link=("device", "edge"),
            direction=DIRECTIONS,
        )
        self.energy = self.counter("energy_joules", "Simulated energy of the tasks of committed rounds, in joules")

    def _add_run_metrics(self) -> None:
        """Gauges of one run; NaN as long as a value is not known."""
        self.accuracy = self.gauge(
            "run_accuracy_ratio", "Newest accuracy of the run that trains, or trained last", of=("global", "clients")
        )
        self.score = self.gauge(
            "run_score",
            "Newest value of the headline metric of the run that trains, or trained last",
            of=("global", "clients"),
        )
        self.loss = self.gauge(
            "run_loss", "Newest loss of the run that trains, or trained last", of=("global", "train")
        )
        self._forget_scores()
        self.ends = self.counter("run_ends", "Runs that ended", status=sorted(FINAL))
        self.warnings = self.counter("warnings", "Events of runs that name something to be mended", event=WARNINGS)
        self.shown_by("runs", "Runs that have not ended", "status", STATUSES, lambda: Counter(self._statuses.values()))

    def _forget_scores(self) -> None:
        for gauge in (self.accuracy, self.score):
            for of in ("global", "clients"):
                gauge.labels(of).set(math.nan)
        for series in (self.loss.labels("global"), self.loss.labels("train")):
            series.set(math.nan)

    def watch(self, registry: Registry, runs: RunManager, evaluator: Evaluator) -> None:
        """Show the state of registry and queues at the moment of each scrape."""

        def agents() -> Counter[str]:
            return Counter(agent_info(registry, agent).state for agent in list(registry.agents))

        def edges() -> Counter[str]:
            return Counter(edge_info(registry, edge).state for edge in list(registry.edges))

        def run(field: str) -> float:
            return float(sum(getattr(info, field) for info in runs.training))

        self.shown("devices", "Devices that the live agents can host", registry.n_devices)
        self.shown_by("agents", "Registered agents", "state", STATES, agents)
        self.shown_by("edges", "Registered edges", "state", STATES, edges)
        self.shown("training", "Runs that train", lambda: float(len(runs.training)))
        self.shown("run_rounds", "Committed rounds of the runs that train", lambda: run("rounds"))
        self.shown("run_rounds_wanted", "Rounds requested of the runs that train", lambda: run("num_rounds"))
        self.shown("run_simulated_seconds", "Simulated seconds of the runs that train", lambda: run("simulated_s"))
        self.shown("store_lost", "1 while the cloud's Redis does not answer", lambda: float(registry.store_lost))
        self.shown("evaluations_waiting", "Evaluations of checkpoints that run or wait", lambda: evaluator.n_waiting)

    def exchanged(self, what: str, sent: int, received: int, wall_s: float) -> None:
        """Count an order that an edge has answered."""
        self.exchange_seconds.observe(wall_s)
        self.socket_bytes.labels("down").inc(sent)
        self.socket_bytes.labels("up").inc(received)

    # ---- events of runs

    def on_event(self, run_id: str, event: RunEvent) -> None:
        """Count an event of a run."""
        data = event.data
        if event.kind == "run.status":
            self._status(run_id, str(data["status"]))
        elif event.kind == "round.committed":
            self._committed(data)
        elif event.kind == "round.retried":
            self.retries.inc()
        elif event.kind == "contribution.lost":
            where = "edge" if data["seat"] is None else "seat"
            self.failures.labels(where, one_of(data["reason"], REASONS)).inc()
        elif event.kind in WARNINGS:
            self.warnings.labels(event.kind).inc()
        elif event.kind == "round.evaluated" and run_id == self._run:
            scores: Mapping[str, Any] = data["evaluation"].get("global", {})
            self.accuracy.labels("global").set(_number(scores.get("accuracy")))
            self.score.labels("global").set(_number(data["score"]))
            self.loss.labels("global").set(_number(scores.get("loss")))

    def _status(self, run_id: str, status: str) -> None:
        if status in FINAL:
            self._statuses.pop(run_id, None)
            self.ends.labels(status).inc()
        else:
            self._statuses[run_id] = status
        if status == "starting" and run_id != self._run:
            self._run = run_id
            self._forget_scores()

    def _committed(self, data: Mapping[str, Any]) -> None:
        self.round_seconds.observe(data["wall_s"])
        self.round_simulated.observe(data["simulated_s"])
        self.visits.inc(data["n_visits"])
        self.updates.inc(data["n_used"])
        self.energy.inc(data["energy_j"])
        for link in ("device", "edge"):
            for direction in DIRECTIONS:
                self.link_bytes.labels(link, direction).inc(data[f"{link}_bytes_{direction}"])
        self.accuracy.labels("clients").set(_number(data["client_accuracy"]))
        self.score.labels("clients").set(_number(data["clients"].get("own", {}).get("mean")))
        self.loss.labels("train").set(_number(data["train_loss"]))


def _number(value: float | None) -> float:
    return math.nan if value is None else value
