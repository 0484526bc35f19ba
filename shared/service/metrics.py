"""What the Prometheus metrics of all tiers have in common: a registry for each tier, bounded labels, the endpoint.

No decision reads a metric. Every label has a fixed set of values, whose series all exist from the start: names of runs,
seats, agents or reasons add none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from shared.core.versions import VERSION
from shared.service.app import metrics_response
from shared.service.auth import guarded
from shared.service.openapi import content

M = TypeVar("M", bound=MetricWrapperBase)
WALL_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
"""Buckets of wall seconds."""
SIMULATED_S = (0.01, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 86400)
"""Buckets of simulated seconds."""
OTHER = "other"
"""The label of every value that is not among the known ones."""
DIRECTIONS = ("up", "down")
OUTCOMES = ("used", "used_late", "refused", "failed", "evaluated", "collected", "idle", OTHER)
# fmt: off
REASONS = (
    "unreachable", "timeout", "deadline", "lost", "offline", "left_out", "unavailable", "busy", "dropped", "late",
    "not_finite", "out_of_bound", "wire", "garbled", "too_large", "too_slow", "error", "cancelled", "conflict",
    "seating_unknown", "misdirected", "bad_input", "unknown_name", "user_code", "not_found", "not_ready", "too_many",
    "throttled", "unauthorised", "forbidden", "internal", "remote", "state_gone", "store_unavailable", "storage_failed",
    "guard_failed", "blob_missing", "blob_corrupt", "data_unavailable", "data_malformed",
    "other_protocol", OTHER,
)
# fmt: on
"""Why a contribution was lost: the reasons of `Failure`, and the codes of errors."""


def one_of(value: object, known: Sequence[str]) -> str:
    """Returns the value if it is a known one, else `other`."""
    return value if isinstance(value, str) and value in known else OTHER


class TierMetrics:
    """The metrics of one tier and of its process, in a registry of their own.

    Args:
        tier: `cloud`, `edge` or `agent`; every metric's name begins with `strata_<tier>`.
    """

    def __init__(self, tier: str) -> None:
        # A creation time beside every counter would be a third of the page, and Prometheus does not use it.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._prefix = f"strata_{tier}"
        ProcessCollector(registry=self.registry)
        Info(f"{self._prefix}_build", "The version that runs", registry=self.registry).info({"version": VERSION})

    def counter(self, name: str, what: str, **labels: Sequence[str]) -> Counter:
        """Returns a counter `strata_<tier>_<name>`, with a series for every combination of the labels' values."""
        return _with_all_series(Counter(f"{self._prefix}_{name}", what, tuple(labels), registry=self.registry), labels)

    def gauge(self, name: str, what: str, **labels: Sequence[str]) -> Gauge:
        """Returns a gauge, named and labelled likewise."""
        return _with_all_series(Gauge(f"{self._prefix}_{name}", what, tuple(labels), registry=self.registry), labels)

    def histogram(self, name: str, what: str, buckets: Sequence[float], **labels: Sequence[str]) -> Histogram:
        """Returns a histogram, named and labelled likewise."""
        name = f"{self._prefix}_{name}"
        return _with_all_series(Histogram(name, what, tuple(labels), registry=self.registry, buckets=buckets), labels)

    def shown(self, name: str, what: str, look: Callable[[], float]) -> None:
        """Adds a gauge whose value is looked up at each scrape."""
        self.gauge(name, what).set_function(look)

    def shown_by(
        self, name: str, what: str, label: str, known: Sequence[str], look: Callable[[], Mapping[str, int]]
    ) -> None:
        """Adds a gauge with one label; at each scrape `look` returns the values that are not 0."""
        self.registry.register(_ShownBy(f"{self._prefix}_{name}", what, label, known, look))


@dataclass(frozen=True)
class _ShownBy(Collector):
    """A gauge with one label, all of whose values are looked up at once."""

    name: str
    what: str
    label: str
    known: Sequence[str]
    look: Callable[[], Mapping[str, int]]

    def describe(self) -> list[Metric]:
        return [GaugeMetricFamily(self.name, self.what, labels=[self.label])]

    def collect(self) -> list[Metric]:
        found, family = self.look(), GaugeMetricFamily(self.name, self.what, labels=[self.label])
        for value in self.known:
            family.add_metric([value], found.get(value, 0))
        return [family]


def _with_all_series(metric: M, labels: Mapping[str, Sequence[str]]) -> M:
    """Creates the series of every combination of the labels' values, and returns the metric."""
    for values in product(*labels.values()) if labels else ():
        metric.labels(*values)
    return metric


def metrics_router(of: Callable[[Request], Any]) -> APIRouter:
    """Returns the router of `GET /metrics`, which the guard `metrics` guards.

    Args:
        of: returns the tier's `TierMetrics` for a request.
    """
    router = APIRouter(dependencies=[guarded("metrics")])

    @router.get(
        "/metrics", tags=["health"], response_class=Response, responses=content("text/plain", "Prometheus text")
    )
    async def metrics(request: Request) -> Response:
        """Prometheus metrics."""
        return metrics_response(of(request).registry)

    return router
