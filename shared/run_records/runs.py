"""The records of a run and its devices, as the REST API and results folders show them."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from shared.core.bounds import LARGEST_DEVICES, RunReason
from shared.core.errors import BadInput
from shared.core.records import LEFT_OUT, Record
from shared.core.scores import MAX_METRICS, FurtherSpreads, Spread, Spreads
from shared.core.validation import Id
from shared.run_records.groups import GroupCount, GroupNames
from shared.run_records.metrics import ACCURACY, MetricInfo, Values
from shared.run_records.provenance import Provenance, ProvenanceChange
from shared.run_records.rounds import Evaluation, RoundDetail, RoundInfo
from shared.run_records.run_order import sequence_of
from shared.spec.ends import Stop
from shared.spec.experiment import ExperimentSpec
from shared.spec.fields import LARGEST_COUNT, Count
from shared.spec.run import Trackers

Status = Literal["pending", "starting", "running", "pausing", "paused", "stopping", "completed", "failed", "stopped"]
FINAL: frozenset[str] = frozenset({"completed", "failed", "stopped"})


ADMINISTRATOR = "admin"
"""By what name the owner is shown of runs that are no user's."""


def owner_name(owner: str | None) -> str:
    """Returns the name by which a run's owner is shown and asked for."""
    return ADMINISTRATOR if owner is None else owner


class NewRun(Record):
    """Body of `POST /runs`. The raw spec is validated with its own message (field, cause, nearest known key)."""

    spec: dict[str, Any]


class MoreRounds(Record):
    """Body of `POST /runs/{id}/rounds`; `accept_changes` as at a resumption, if the run has ended.

    `stop` replaces the run's; without it a run that has not been ended by its own keeps that.
    """

    num_rounds: Count
    accept_changes: bool = False
    stop: Stop | None = None


class RunChange(Record):
    """Body of `PATCH /runs/{id}`.

    Attributes:
        max_devices: for how many devices the run has room from its next round on.
        pinned: whether it is kept however long ago it ended.
    """

    max_devices: Annotated[int, Field(ge=1, le=LARGEST_DEVICES)] | None = None
    pinned: bool | None = None

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if self.max_devices is None and self.pinned is None:
            raise ValueError("nothing to change: name `max_devices`, `pinned`, or both")
        return self


class BestModel(Record):
    """The round whose global model is the best of those evaluated; it can be downloaded as the model `best`.

    Attributes:
        round_no: the first of the rounds with the best value.
        metric: by which rounds are compared.
        value: its value.
        on: the samples on which it was measured: the validation part, or the test set, on which it was then chosen.
    """

    round_no: int
    metric: MetricInfo
    value: float
    on: Literal["validation", "test"]

    def beats(self, other: BestModel) -> bool:
        """Whether it is better than another round, or the earlier of two equal ones."""
        if self.value == other.value:
            return self.round_no < other.round_no
        return (self.value > other.value) is self.metric.higher_is_better

    def __str__(self) -> str:
        chosen = "" if self.on == "validation" else ", on which it was chosen"
        part = "validation part" if self.on == "validation" else "test set"
        return f"round {self.round_no}: {self.metric.label} {self.metric.text(self.value)} on the {part}{chosen}"


class RunInfo(Record):
    """A run: its status and its figures so far.

    `run` names its results folder, so it must not be a path. `accuracy` and `loss` are the algorithm's headline
    figures; `accuracy_of` says which: `global model` or `mean over clients`, whose spread after the last round is in
    `clients`, that of metrics other than the headline in `client_metrics`. `bytes_up` and `bytes_down` add both links
    of all training rounds. `simulated_s` adds the rounds.
    `model_sha256` is the digest of the newest global model. `plan` says what data and model were taken to be. `notes`
    say how the run differs from what was requested.
    `tracking`: the trackers to which it is sent. `provenance` is what the run began with, None before its initial
    checkpoint; `changes` are the other data, packages and machines with which it went on.
    `n_used` and `energy_j` add up the used updates and the energy of all training rounds. `stop` is what may still end
    it early, whose evaluations count from the round `stop_from` on; `ended_by` is the condition that did. `best` is the
    round with the best model, of a run that compares rounds. `metrics` are what it measures, the headline first;
    `scores` are the values of those that are not the accuracy, of what `accuracy` is of. `classes` are the names of the
    data's classes in the order of their numbers, empty where they have none. `init_sha256` is the digest of the model
    of the spec's `init`. `owner` is the user whose run it is, None for the administrator;
    a `pinned` run is never removed by the cloud itself.
    `sequence` orders runs by their creation (see `run_order`); 0 of one that is older than such numbers.
    """

    run: Id
    name: str
    algorithm: str
    status: Status
    reason: RunReason | None = None
    created_at: str
    owner: Annotated[Id | None, LEFT_OUT] = None
    pinned: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    sequence: Annotated[int, Field(ge=0, exclude_if=lambda number: not number)] = 0
    rounds: int = 0
    num_rounds: int
    phase: str | None = None
    accuracy: float | None = None
    loss: float | None = None
    metrics: Annotated[tuple[MetricInfo, ...], Field(min_length=1, max_length=MAX_METRICS)] = (ACCURACY,)
    scores: Values = Field(default_factory=dict)
    classes: Annotated[tuple[str, ...], Field(exclude_if=lambda names: not names)] = ()
    accuracy_of: str = "global model"
    bytes_up: int = 0
    bytes_down: int = 0
    wall_s: float = 0.0
    simulated_s: float = 0.0
    n_used: int = 0
    energy_j: float = 0.0
    stop: Stop | None = None
    stop_from: Annotated[int, Field(exclude_if=lambda round_no: not round_no)] = 0
    best: Annotated[BestModel | None, LEFT_OUT] = None
    ended_by: RunReason | None = None
    init_sha256: str | None = None
    model_sha256: str | None = None
    models: tuple[str, ...] = ()
    final: dict[str, Evaluation] = Field(default_factory=dict)
    clients: Spreads = Field(default_factory=dict)
    client_metrics: FurtherSpreads = Field(default_factory=dict)
    plan: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tracking: Trackers = ()
    resolved: bool = False
    provenance: Provenance | None = None
    changes: tuple[ProvenanceChange, ...] = ()
    spec: ExperimentSpec

    @property
    def owner_name(self) -> str:
        """By what name its owner is shown and asked for."""
        return owner_name(self.owner)

    @property
    def order(self) -> tuple[int, str]:
        """Return what sorts runs by their creation: the later one is greater."""
        return sequence_of(self.sequence, self.created_at), self.run

    @property
    def headline(self) -> MetricInfo:
        """The metric by which the run is judged."""
        return self.metrics[0]

    @property
    def score(self) -> float | None:
        """The value of the headline metric."""
        return self.value(self.headline)

    def value(self, metric: MetricInfo) -> float | None:
        """Return the value of one of the run's metrics."""
        return self.accuracy if metric.label == ACCURACY.label else self.scores.get(metric.label)

    def spreads(self, metric: MetricInfo, row: RoundInfo | None = None) -> Spreads:
        """Return how one of the run's metrics spreads over clients, at its end or in one of its rounds."""
        found = self if row is None else row
        return found.clients if metric.label == self.headline.label else found.client_metrics.get(metric.label, {})

    def spread_of_used(self, metric: MetricInfo, *, own: bool) -> Spread | None:
        """Return how a metric spreads at the end over clients that use models of their `own`, or those received."""
        found = self.spreads(metric)
        return (found.get("own") if own else None) or found.get("received")

    def over_clients(self, metric: MetricInfo, row: RoundInfo) -> float | None:
        """Return the mean over clients' own models of one of the run's metrics in a round."""
        own = self.spreads(metric, row).get("own")
        return row.client_accuracy if metric.label == ACCURACY.label else own.mean if own else None

    def with_round(self, detail: RoundDetail, wall_s: float) -> RunInfo:
        """Return the run after a further training round, `wall_s` seconds after it began to train."""
        return self.replace(
            rounds=detail.round_no,
            phase=detail.phase,
            bytes_up=self.bytes_up + detail.bytes_up,
            bytes_down=self.bytes_down + detail.bytes_down,
            simulated_s=self.simulated_s + detail.simulated_s,
            energy_j=self.energy_j + detail.energy_j,
            n_used=self.n_used + detail.n_used,
            wall_s=wall_s,
            model_sha256=detail.model_sha256 or self.model_sha256,
        )

    def with_more_rounds(self, n: int, stop: Stop | None = None) -> RunInfo:
        """Return the run with `n` further rounds at its end, which `stop` may end early.

        Raises:
            BadInput: it would have more than `LARGEST_COUNT` rounds.
        """
        if self.num_rounds + n > LARGEST_COUNT:
            found = f"run {self.run} has {self.num_rounds} rounds, and {n} more would be too many"
            raise BadInput(f"{found}: the limit is {LARGEST_COUNT}", field="num_rounds")
        since = self.stop_from if stop is None else self.rounds
        return self.replace(num_rounds=self.num_rounds + n, stop=stop or self.stop, stop_from=since, ended_by=None)


class UnreadableRun(Record):
    """A run whose document this version cannot read, with the reason. It can be deleted."""

    run: str
    created_at: str
    reason: str


class RunPage(Record):
    """`GET /runs`: newest first; those that cannot be read are listed apart."""

    runs: tuple[RunInfo, ...]
    unreadable: tuple[UnreadableRun, ...] = ()


class FilePage(Record):
    """`GET /runs/{id}/files`: names relative to the run's results folder."""

    files: tuple[str, ...]


class SeatInfo(Record):
    """One device of a run, with its current agent and its capabilities.

    Attributes:
        latency_s: to the edge to which it is assigned.
        faulty: whether its training samples have the faults of the spec's `data.faults`.
        label_counts: of its training samples, without faults.
        groups: names of the groups (writers, hospitals, domains) of its samples, at most 10 of `n_groups`.
    """

    seat: int
    role: Literal["train", "held_out", "worker"]
    home: int
    edge: str | None = None
    agent: str | None = None
    state: str
    reason: str | None = None
    profile: str
    straggler: bool = False
    faulty: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    compute_sps: float | None = None
    up_bps: float | None = None
    down_bps: float | None = None
    latency_s: float | None = None
    n_train: int
    n_test: int
    label_counts: tuple[int, ...]
    groups: GroupNames = ()
    n_groups: GroupCount = 0


SEATS_A_PAGE = 10_000
"""Most devices of a page, and of the list in a results folder."""


def device_name(seat: int, placed: SeatInfo | None) -> str:
    """What people are shown as the name of a device."""
    return f"worker {seat}" if placed is not None and placed.role == "worker" else f"device {seat}"


class SeatPage(Record):
    """`GET /runs/{id}/seats`: in the order of their numbers."""

    seats: tuple[SeatInfo, ...]
