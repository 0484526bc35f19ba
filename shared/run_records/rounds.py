"""What is recorded of one round: its edges, its figures, its evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypedDict

from pydantic import Field

from shared.core.records import LEFT_OUT, Record
from shared.core.scores import ClassCounts, FurtherSpreads, Spreads
from shared.run_records.groups import GroupCount, GroupNames
from shared.run_records.metrics import ACCURACY, LOSS, MetricInfo, Tables, Values
from shared.run_records.visits import FailureInfo, VisitRow

SentBytes = Annotated[int, Field(exclude_if=lambda n: not n)]
"""Bytes that devices send beside their tasks; left out where they send none."""
SentJoules = Annotated[float, Field(exclude_if=lambda joules: not joules)]
"""Energy that devices spend beside their tasks."""


class EdgeRow(Record):
    """One edge in one round; bytes and seconds down and up are those of its link to the cloud.

    `outcome`: `used`, `idle` (nothing to send; reason `unavailable` if all selected devices were off), `failed`,
    `away` (lost: its devices worked for other edges). `simulated_s`: its edge rounds plus its link.
    Accuracies, losses and further metrics are the edge's own evaluation, where the edge is the client. `begin_s`:
    when its request was sent, counted from the start of the round; below 0 if in an earlier round. `staleness`:
    versions that the global model was ahead of the one that the edge received, when its answer counted; `staleness_s`:
    from request to answer. `groups`: of the samples of an edge that is the client, see `SeatInfo`. `collected_bytes`,
    `collected_j`, `telemetry_bytes`, `telemetry_j`: bytes and energy of the samples, and of the messages to their
    digital twins, that its devices sent to it.
    """

    edge: str
    home: int
    outcome: str
    reason: str | None = None
    n_used: int = 0
    received_accuracy: float | None = None
    received_loss: float | None = None
    own_accuracy: float | None = None
    own_loss: float | None = None
    own_on: dict[str, float] = Field(default_factory=dict)
    received_metrics: Values = Field(default_factory=dict)
    own_metrics: Values = Field(default_factory=dict)
    by_class: Tables = Field(default_factory=dict)
    down_bytes: int = 0
    up_bytes: int = 0
    down_s: float = 0.0
    up_s: float = 0.0
    begin_s: float = 0.0
    simulated_s: float = 0.0
    staleness: int = 0
    staleness_s: float = 0.0
    fresh_state: bool = False
    groups: GroupNames = ()
    n_groups: GroupCount = 0
    collected_bytes: SentBytes = 0
    collected_j: SentJoules = 0.0
    telemetry_bytes: SentBytes = 0
    telemetry_j: SentJoules = 0.0


def last_edge(edges: Sequence[EdgeRow]) -> EdgeRow | None:
    """The edge for which a round's end waited; None if no edge took any time."""
    timed = [edge for edge in edges if edge.simulated_s > 0]
    return max(timed, key=lambda edge: edge.begin_s + edge.simulated_s, default=None)


class RunScores(TypedDict):
    """The fields of a run that an evaluation fills."""

    accuracy: float | None
    loss: float | None
    scores: dict[str, float]


class Evaluation(Record):
    """An evaluation on one named test set, e.g. `global`; `metrics` are the values of the run's further metrics.

    Attributes:
        errors: bounds of the errors of those of them that are not exact.
        by_class: after the last round, what it counts by class, if a metric of the run does.
    """

    n: int
    accuracy: float | None = None
    loss: float | None = None
    metrics: Values = Field(default_factory=dict)
    errors: Values = Field(default_factory=dict)
    by_class: Annotated[ClassCounts | None, LEFT_OUT] = None

    def value(self, metric: MetricInfo) -> float | None:
        """Return the value of one of the run's metrics, or of the loss."""
        own = {ACCURACY.label: self.accuracy, LOSS.label: self.loss}
        return self.metrics.get(metric.label, own.get(metric.label))

    @property
    def of_run(self) -> RunScores:
        """The figures as those of a run of which this is the headline evaluation."""
        return {"accuracy": self.accuracy, "loss": self.loss, "scores": self.metrics}


class RoundInfo(Record):
    """One committed round.

    Link bytes are those of the simulated links (deterministic), socket bytes those that these processes exchanged.
    `evaluation` is filled in when the evaluation, which runs beside the next round, is done. `attempts` is above 1 if
    the round was repeated on a new round map; only the last attempt counts. `report_bytes` is the part of
    `device_bytes_up` sent before a verdict; `labels` counts tasks by the algorithm's label;
    `energy_j` is the sum over tasks and of `collected_j`, and `collected_bytes` are a part of `device_bytes_up`: of the
    samples that devices sent to their edges. `telemetry_bytes` and `telemetry_j`, of messages to digital twins, are in
    no other sum. `figures` are the algorithm's own, by edge number, and of the `cloud`. `clients` are the headline
    metric's values of the models that clients (devices, or edges) `received` and of their `own`, each on its own test
    set, and of their own on those of `test_on` (`own_on_union`); `client_metrics` are those of the run's other metrics.
    `testing_s` adds the wall seconds in which devices, most of them beside each other, tested models within `wall_s`.
    """

    round_no: int
    phase: str
    kind: Literal["train", "evaluate"] = "train"
    attempts: int = 1
    n_visits: int = 0
    n_used: int = 0
    labels: dict[str, int] = Field(default_factory=dict)
    train_loss: float | None = None
    client_accuracy: float | None = None
    clients: Spreads = Field(default_factory=dict)
    client_metrics: FurtherSpreads = Field(default_factory=dict)
    bytes_up: int = 0
    bytes_down: int = 0
    device_bytes_up: int = 0
    device_bytes_down: int = 0
    report_bytes: int = 0
    edge_bytes_up: int = 0
    edge_bytes_down: int = 0
    socket_bytes: int = 0
    simulated_s: float = 0.0
    energy_j: float = 0.0
    wall_s: float = 0.0
    testing_s: float = 0.0
    model_sha256: str = ""
    failures: tuple[FailureInfo, ...] = ()
    retired: dict[int, str] = Field(default_factory=dict)
    figures: dict[str, Any] = Field(default_factory=dict)
    edges: tuple[EdgeRow, ...] = ()
    evaluation: dict[str, Evaluation] | None = None
    collected_bytes: SentBytes = 0
    collected_j: SentJoules = 0.0
    telemetry_bytes: SentBytes = 0
    telemetry_j: SentJoules = 0.0

    @property
    def n_lost(self) -> int:
        """How many contributions were lost: those of a lost edge count singly."""
        return sum(each.n_lost for each in self.failures)

    @property
    def accuracy(self) -> float | None:
        """Accuracy of the global model on the test set; None if it was not evaluated after this round."""
        return self._of_global.accuracy if self._of_global else None

    @property
    def loss(self) -> float | None:
        """Loss of the global model on the test set; None if it was not evaluated after this round."""
        return self._of_global.loss if self._of_global else None

    @property
    def _of_global(self) -> Evaluation | None:
        return (self.evaluation or {}).get("global")

    def on_global(self, metric: MetricInfo) -> float | None:
        """Return the value of one of the run's metrics on the global test set."""
        return self._of_global.value(metric) if self._of_global else None

    def on_validation(self, metric: MetricInfo) -> float | None:
        """Return the global model's value of one of the run's metrics on the validation part."""
        found = (self.evaluation or {}).get("validation")
        return found.value(metric) if found else None


class RoundDetail(RoundInfo):
    """One round with a row for each task."""

    seats: tuple[VisitRow, ...] = ()


MAX_PAGE_BYTES = 2**22
"""Size at which a page of rounds ends; it holds at least one round."""


class RoundPage(Record):
    """`GET /runs/{id}/rounds`: in order."""

    rounds: tuple[RoundInfo, ...]

    @classmethod
    def of(cls, rounds: Sequence[RoundInfo], skip: int = 0) -> tuple[RoundPage, int | None]:
        """The page that begins after the first `skip` rounds, and what the next one skips; None after the last."""
        n_bytes, end = 0, skip
        for row in rounds[skip:]:
            n_bytes += len(row.model_dump_json())
            if n_bytes > MAX_PAGE_BYTES and end > skip:
                return cls(rounds=tuple(rounds[skip:end])), end
            end += 1
        return cls(rounds=tuple(rounds[skip:])), None
