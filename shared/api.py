"""The models of the cloud's public REST API: one for each direction. JSON only; tensors go as safetensors."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from shared.core.records import Record
from shared.core.scores import Spread
from shared.core.validation import Id
from shared.run_spec import Trackers
from shared.spec import ExperimentSpec

Status = Literal["pending", "starting", "running", "pausing", "paused", "stopping", "completed", "failed", "stopped"]
FINAL: frozenset[str] = frozenset({"completed", "failed", "stopped"})


class Problem(Record):
    """RFC 9457 problem details; `field` is the path of the field at fault."""

    type: str = "about:blank"
    title: str
    status: int
    code: str
    detail: str
    field: str | None = None


class NewRun(Record):
    """Body of `POST /runs`. The raw spec is validated with its own message (field, cause, nearest known key)."""

    spec: dict[str, Any]


class MoreRounds(Record):
    """Body of `POST /runs/{id}/rounds`."""

    num_rounds: int = Field(ge=1, le=100_000)


class FailureInfo(Record):
    """A contribution that was lost, and why: `reason` is one of a fixed set, `detail` says it in words.

    Where a whole edge was lost, `seats` are those whose contributions went with it.
    """

    seat: int | None = None
    edge: str | None = None
    seats: tuple[int, ...] = ()
    reason: str
    detail: str


class SeatRow(Record):
    """What one seat did in one round.

    `outcome`: `used`, `used_late`, `refused`, `failed`, `evaluated`, `collected`, `idle`. `label` is the
    algorithm's word for it. Seconds are simulated ones: `simulated_s` is the sum of receiving, working, waiting
    for the edge's decision on its report, and sending.
    `begin_s`: when its wave began, in simulated seconds after the round did.
    `report_bytes`: of `up_bytes`, what travelled before the edge admitted or refused the update. An update that came
    late has a row of its own in the round that uses it (`used_late`). `work_share`: of the work that the algorithm
    asked for, what the seat was given (`partial_work`). `profile` is the one that the seat had in this round.
    `moved_bytes`: of `down_bytes`, samples that the seat does not hold. `predicted_s`: what its twin expected.
    `measured_s`: with `clock: real`, wall seconds from the edge's orders until their answers. `own_on`: accuracies of
    the seat's own model on the test sets of `test_on`.
    """

    seat: int
    edge: str
    edge_round: int = 0
    wave: int = 0
    agent: str | None = None
    profile: str | None = None
    outcome: str
    reason: str | None = None
    label: str | None = None
    n_samples: int = 0
    work_share: float = 1.0
    train_loss: float | None = None
    received_accuracy: float | None = None
    received_loss: float | None = None
    own_accuracy: float | None = None
    own_loss: float | None = None
    own_on: dict[str, float] = Field(default_factory=dict)
    n_test: int = 0
    down_bytes: int = 0
    up_bytes: int = 0
    report_bytes: int = 0
    moved_bytes: int = 0
    begin_s: float = 0.0
    down_s: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    up_s: float = 0.0
    simulated_s: float = 0.0
    predicted_s: float | None = None
    measured_s: float | None = None
    energy_j: float = 0.0
    fresh_state: bool = False
    figures: dict[str, Any] = Field(default_factory=dict)


class EdgeRow(Record):
    """What one edge did in one round; bytes and seconds down and up are those of its link to the cloud.

    `outcome`: `used`, `idle` (nothing to send; with the reason `unavailable` where every chosen device was off),
    `failed`, `away` (lost, so that its devices visited other edges). `simulated_s` adds its edge rounds to its link.
    Accuracies and losses are the edge's own evaluation, where the edge is the client.
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
    down_bytes: int = 0
    up_bytes: int = 0
    down_s: float = 0.0
    up_s: float = 0.0
    simulated_s: float = 0.0
    fresh_state: bool = False


class Evaluation(Record):
    """An evaluation on one named test set, e.g. `global`."""

    n: int
    accuracy: float | None = None
    loss: float | None = None


class RoundInfo(Record):
    """One committed round.

    Link bytes are those of the modelled system (deterministic), socket bytes those that this layout of processes
    moved. `evaluation` is filled in when the evaluation, which runs beside the next round, is ready. `attempts` is
    above 1 where the round was done again on a new map; only the last attempt counts. `report_bytes` are those of
    `device_bytes_up` that travelled before a verdict; `labels` counts visits by the algorithm's word for them;
    `energy_j` is that of all visits. `figures` are the algorithm's own, by home, and of the `cloud`. `clients` are the
    accuracies of the models that clients (seats, or edges) `received` and of their `own`, each on its own test set, and
    of their own on those of `test_on` (`own_on_union`). `testing_s` adds the wall seconds in which devices, most of
    them beside each other, tested models within `wall_s`.
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
    clients: dict[str, Spread] = Field(default_factory=dict)
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


class RoundDetail(RoundInfo):
    """One round with a row for each visit."""

    seats: tuple[SeatRow, ...] = ()


class RunInfo(Record):
    """A run: where it stands, and its figures so far.

    `run` names its results folder, so that it can be no path. `accuracy` and `loss` are the algorithm's headline
    figures; `accuracy_of` says which: `global model` or `mean over clients`, whose spread after the last round is in
    `clients`. `bytes_up` and `bytes_down` add both links of all training rounds. `simulated_s` adds the rounds.
    `model_sha256` is the digest of the newest global model. `notes` say in what the run is not what was asked for
    (data that cannot be had). `tracking`: who is told of it.
    """

    run: Id
    name: str
    algorithm: str
    status: Status
    reason: str | None = None
    created_at: str
    rounds: int = 0
    num_rounds: int
    phase: str | None = None
    accuracy: float | None = None
    loss: float | None = None
    accuracy_of: str = "global model"
    bytes_up: int = 0
    bytes_down: int = 0
    wall_s: float = 0.0
    simulated_s: float = 0.0
    model_sha256: str | None = None
    models: tuple[str, ...] = ()
    final: dict[str, Evaluation] = Field(default_factory=dict)
    clients: dict[str, Spread] = Field(default_factory=dict)
    notes: tuple[str, ...] = ()
    tracking: Trackers = ()
    resolved: bool = False
    spec: ExperimentSpec


class RunPage(Record):
    """`GET /runs`: newest first."""

    runs: tuple[RunInfo, ...]


class RoundPage(Record):
    """`GET /runs/{id}/rounds`: in order."""

    rounds: tuple[RoundInfo, ...]


class FilePage(Record):
    """`GET /runs/{id}/files`: names relative to the run's results folder."""

    files: tuple[str, ...]


class SeatInfo(Record):
    """One seat of a run, and who sits there now. What its device can do: `latency_s` is that to its home."""

    seat: int
    role: Literal["train", "held_out", "worker"]
    home: int
    edge: str | None = None
    agent: str | None = None
    state: str
    reason: str | None = None
    profile: str
    straggler: bool = False
    compute_sps: float | None = None
    up_bps: float | None = None
    down_bps: float | None = None
    latency_s: float | None = None
    n_train: int
    n_test: int
    label_counts: tuple[int, ...]


class SeatPage(Record):
    """`GET /runs/{id}/devices`."""

    devices: tuple[SeatInfo, ...]


class AlgorithmInfo(Record):
    """One algorithm with the JSON schema of its parameters."""

    name: str
    paper: str
    params: dict[str, Any]


class AlgorithmList(Record):
    """`GET /algorithms`."""

    algorithms: tuple[AlgorithmInfo, ...]


class Health(Record):
    """`GET /healthz` and `GET /readyz`; `missing` names what is not there yet."""

    status: Literal["ok", "not_ready"]
    tier: str
    version: str
    missing: tuple[str, ...] = ()


class Event(Record):
    """One event of a run, as sent by SSE: `id` is the SSE id (for `Last-Event-ID`), `kind` the SSE event name.

    Kinds: `run.status`, `round.started`, `round.committed`, `round.evaluated`, `round.retried`, `contribution.lost`,
    `seat.profile` (an agent was given another one), `seat.moved`, `seat.taken`, `seat.left`, `seat.retired`,
    `home.moved`, `tracking.failed`, `tracking.resumed`, and `node.` with a `State`.
    """

    id: str
    kind: str
    at: str
    data: dict[str, Any]
