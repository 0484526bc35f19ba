"""`ExperimentSpec`: the science of a run, apart from where it runs.

YAML or JSON; unknown keys are refused with the nearest known one; every field has bounds. The algorithm's own
parameters are validated by the algorithm's own model.

What of a spec must fit together: each field may be well by itself.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from shared.core.errors import BadInput
from shared.core.records import Record, canonical
from shared.core.validation import Names
from shared.simulation import DeviceSpec, EdgeLinkSpec, Parts
from shared.spec.fields import AlgorithmSpec, Count, Loss, Timeouts
from shared.training.data.augmentation import AugmentSpec
from shared.training.data.dataset import DataSpec
from shared.training.models.zoo import ModelSpec
from shared.training.partition import IidPartition, PartitionSpec
from shared.wire.compression.specs import CompressionSpec


def check_counts(spec: ExperimentSpec) -> None:
    """Refuse numbers that cannot go together, as far as they are fixed.

    Raises:
        BadInput: naming both.
    """
    devices = spec.max_devices or spec.num_devices
    if devices is None:
        return
    if spec.num_edges is not None and spec.num_edges > devices:
        raise BadInput(f"num_edges: {spec.num_edges} edges for {devices} devices", field="num_edges")
    if spec.data.n_train is not None and spec.client == "device" and devices > spec.data.n_train:
        many = f"{devices} devices for {spec.data.n_train} training samples"
        raise BadInput(f"data.n_train: {many}", field="data.n_train")


DIVIDED = ("equal", "free_compute", "finish_time")
"""Schedules that divide the samples of an edge's seats among them, whoever holds them."""
PLANNED = ("free_compute", "finish_time")
"""Those that plan by twins, and plan anew what a worker did not do."""


class ExperimentSpec(Record):
    """An experiment's description.

    Attributes:
        num_devices: seats taken at the start; None = as many as there are devices when the run starts.
        max_devices: seats in all, the rest for devices that come later; None = `num_devices`.
        num_edges: None = as many as there are edges when the run starts.
        num_rounds: cloud rounds of the algorithm's last phase.
        edge_rounds: inner rounds at the edge for each cloud round (hierarchical FedAvg if above 1).
        client: who owns a model in the federation: a device's seat, or an edge.
        edge_worker: with `client: edge`, the edge's own machine trains a share too.
        fraction_train: share of an edge's seats that train in an edge round (where `select` is not `all`).
        fraction_candidates: share from which `power_of_choice` takes them; None = twice as many.
        sync: when what workers trained is averaged: after their visit of a round, each epoch, or each mini-batch.
        overrun: where shares are planned, their first wave ends at so many times the seconds planned for it.
        twins: an edge keeps twins also where no schedule plans by them.
        arrival_rate: samples that a device collects each round, up to 1 as a share of its part; None = all are there.
        quorum: share of the visits of a wave (and of the edges of a round) that must answer.
        round_deadline_s: simulated seconds after which an edge round ends; what comes later is late.
        report_deadline_s: simulated seconds of a wave after which an edge decides by the reports that it has.
        late: what becomes of a late update: it is dropped, or used in a later round.
        staleness_discount: by what its weight is multiplied for each round that it is old.
        partial_work: whether seats are given fewer steps where they would else be late.
        overselection: share of seats chosen beyond those that are wanted; of all, the first to answer are admitted.
        held_out_fraction: share of the seats that never train and only evaluate.
        test_fraction: share of a client's own part that is its test set, drawn for each client, or from a list that
            clients take in turn; None = the data set's test images are dealt like the training images.
        eval_every: the global model and held-out seats are evaluated every so many rounds, and after the last.
        test_on: on which further test sets the global model and the clients' own are tested in these rounds: `union`
            (all clients' test sets together), `unseen` (domains that no client has), or a domain by its name.
        augment: how training images are changed each time, or once; None = not at all.
        losses: contributions to leave out; what the record of a disturbed run names, an undisturbed one repeats.
        compression: how parameters travel between an edge and its devices, up and down.
        edge_upload: `sum` sends exact sums to the cloud (8 bytes a parameter), `mean` rounded means (4 bytes).
        clock: `real` makes devices wait as long as the model says, and lets the wall clock decide who is late.
        time_scale: with it, wall seconds that stand for a simulated one.
        device: what trains and evaluates, in each process that does: its CPU, or a GPU by CUDA.
    """

    name: str = Field(default="experiment", min_length=1, max_length=100)
    seed: int = Field(default=0, ge=0, lt=2**53)
    algorithm: AlgorithmSpec = AlgorithmSpec()
    data: DataSpec = DataSpec()
    model: ModelSpec = ModelSpec()
    partition: PartitionSpec = IidPartition()

    num_rounds: Count = 10
    edge_rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    num_edges: Annotated[int, Field(ge=1, le=1000)] | None = None
    num_devices: Count | None = None
    max_devices: Count | None = None
    min_devices: Count = 1
    client: Literal["device", "edge"] = "device"
    edge_worker: bool = True

    local_epochs: Annotated[int, Field(ge=1, le=1000)] = 1
    batch_size: Annotated[int, Field(ge=1, le=100_000)] = 32
    lr: Annotated[float, Field(gt=0, le=100)] = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0

    select: Literal["all", "random", "fastest", "power_of_choice"] = "all"
    fraction_train: Annotated[float, Field(gt=0, le=1)] = 1.0
    fraction_candidates: Annotated[float, Field(gt=0, le=1)] | None = None
    schedule: Literal["own_data", "equal", "free_compute", "finish_time"] = "own_data"
    sync: Literal["round", "epoch", "step"] = "round"
    overrun: Annotated[float, Field(ge=1, le=1e6)] | None = None
    twins: bool = False
    arrival_rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.5
    round_deadline_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    report_deadline_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    late: Literal["drop", "next_round"] = "drop"
    staleness_discount: Annotated[float, Field(gt=0, le=1)] = 0.5
    partial_work: bool = False
    overselection: Annotated[float, Field(ge=0, le=100)] = 0.0
    association: Literal["balanced", "latency"] = "balanced"
    held_out_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    test_fraction: Parts | None = None
    eval_every: Annotated[int, Field(ge=1, le=100_000)] = 1
    test_on: Names = ()
    augment: AugmentSpec | None = None
    edge_upload: Literal["sum", "mean"] = "sum"
    compression: CompressionSpec = CompressionSpec()
    clock: Literal["simulated", "real"] = "simulated"
    time_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0

    device: Literal["cpu", "cuda"] = "cpu"
    devices: DeviceSpec = DeviceSpec()
    edge_link: EdgeLinkSpec = EdgeLinkSpec()
    timeouts: Timeouts = Timeouts()
    losses: Annotated[tuple[Loss, ...], Field(max_length=100_000)] = ()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, raw: Any) -> Any:
        """`data: mnist`, `algorithm: fedavg` and the like stand for `{name: ...}`."""
        if not isinstance(raw, Mapping):
            return raw
        fields = ("algorithm", "data", "model", "partition", "edge_link", "augment")
        short = {k: {"name": raw[k]} for k in fields if isinstance(raw.get(k), str)}
        return {**raw, **short}

    @model_validator(mode="after")
    def _fits_together(self) -> ExperimentSpec:
        check_fits(self)
        return self

    @property
    def may_refuse(self) -> bool:
        """Whether an edge may refuse an update by its simulated arrival; with `clock: real` the wall clock decides."""
        deadlines = (self.round_deadline_s, self.report_deadline_s)
        limited = any(limit_s is not None for limit_s in deadlines) or self.overselection > 0
        return self.clock == "simulated" and (limited or self.overrun is not None)

    @property
    def plans(self) -> bool:
        """Whether shares are planned by twins, and planned anew where a worker did not do its own."""
        return self.schedule in PLANNED

    @property
    def keeps_twins(self) -> bool:
        """Whether edges keep twins."""
        return self.twins or self.plans

    @property
    def epochs_a_visit(self) -> int:
        """Local epochs of one visit."""
        return self.local_epochs if self.sync == "round" else 1

    @property
    def inner_rounds(self) -> int:
        """Edge rounds of a round, each epoch counted where it is one; the steps of an epoch are one visit's work."""
        return self.edge_rounds * (1 if self.sync == "round" else self.local_epochs)

    @property
    def is_resolved(self) -> bool:
        """True once every number that may depend on who is there has been fixed."""
        return None not in (self.num_devices, self.num_edges, self.max_devices)

    def resolved(self, *, n_devices: int, n_edges: int) -> ExperimentSpec:
        """The spec with its open numbers filled in by what is there when the run starts, up to `max_devices`.

        Raises:
            BadInput: what it lists for each seat does not fit what is there.
        """
        num_devices = self.num_devices or max(min(n_devices, self.max_devices or n_devices), 1)
        max_devices = self.max_devices or num_devices
        num_edges = self.num_edges or max(min(n_edges, max_devices), 1)
        try:
            self.devices.check_latencies(max_devices, num_edges)
        except ValueError as error:
            raise BadInput(str(error), field="devices.edge_latency_s") from None
        return self.replace(num_devices=num_devices, num_edges=num_edges, max_devices=max_devices)

    def quorum_of(self, n: int) -> int:
        """How many of n must answer; 0.55 of 20 is 11, whatever floating point makes of it."""
        return math.ceil(self.quorum * n - 1e-9)

    def left_out(self, round_no: int, edge_round: int, wave: int) -> frozenset[int]:
        """The seats whose visits `losses` leaves out here."""
        here = [loss for loss in self.losses if loss.round_no == round_no]
        here = [loss for loss in here if loss.edge_round in (None, edge_round) and loss.wave in (None, wave)]
        return frozenset(seat for loss in here for seat in loss.seats)

    def digest(self) -> str:
        """sha256 over the spec as canonical JSON."""
        return hashlib.sha256(canonical(self).encode()).hexdigest()


S = TypeVar("S", bound=ExperimentSpec)

LEAST_WAIT_S, LONGEST_WAIT_S = 0.1, 86_400.0
"""Wall seconds that a deadline may be: nobody answers in less, and nobody waits a day."""


def check_fits(spec: ExperimentSpec) -> None:
    """See that the fields of a spec fit together.

    Raises:
        ValueError: they do not; begins with the name of the field that is wrong beside the others.
    """
    _numbers(spec)
    _selection(spec)
    _deadline(spec)
    _clock(spec)
    _shares(spec)


def _numbers(spec: ExperimentSpec) -> None:
    n_seats = spec.num_devices if spec.max_devices is None else spec.max_devices
    spec.devices.check_latencies(n_seats, spec.num_edges)
    if spec.num_devices is None:
        return
    if spec.max_devices is not None and spec.max_devices < spec.num_devices:
        raise ValueError(f"max_devices {spec.max_devices} is below num_devices {spec.num_devices}")
    if spec.min_devices > spec.num_devices:
        raise ValueError(f"min_devices {spec.min_devices} is above num_devices {spec.num_devices}")


def _selection(spec: ExperimentSpec) -> None:
    if spec.fraction_train < 1 and spec.select == "all":
        raise ValueError("fraction_train below 1 needs select: random, fastest or power_of_choice")
    if spec.fraction_candidates is not None:
        if spec.select != "power_of_choice":
            raise ValueError("fraction_candidates needs select: power_of_choice")
        if spec.fraction_candidates < spec.fraction_train:
            raise ValueError("fraction_candidates is below fraction_train: candidates are more than are chosen")
    if spec.overselection and spec.select == "all":
        raise ValueError("overselection needs a policy that does not select all, such as select: random")
    if spec.overselection and spec.fraction_train == 1:
        raise ValueError("overselection needs fraction_train below 1: beyond all seats there are none")


def _deadline(spec: ExperimentSpec) -> None:
    if spec.late == "next_round" and spec.round_deadline_s is None:
        raise ValueError("late: next_round needs round_deadline_s: without a deadline nobody is late")
    if spec.partial_work and spec.round_deadline_s is None and spec.report_deadline_s is None:
        raise ValueError("partial_work needs round_deadline_s: without a deadline there is time for all work")
    if spec.report_deadline_s is None or spec.round_deadline_s is None:
        return
    if spec.report_deadline_s >= spec.round_deadline_s:
        raise ValueError("report_deadline_s is not below round_deadline_s: updates need time after the reports")


def _clock(spec: ExperimentSpec) -> None:
    if spec.clock == "simulated":
        if spec.time_scale != 1:
            raise ValueError("time_scale needs clock: real: simulated time takes no time")
        return
    if spec.late == "next_round":
        raise ValueError("late: next_round needs clock: simulated: with clock: real an edge breaks off who is late")
    if spec.overselection:
        raise ValueError("overselection needs clock: simulated: with clock: real who is first would be chance")
    for name in ("round_deadline_s", "report_deadline_s"):
        limit_s: float | None = getattr(spec, name)
        if limit_s is not None and not LEAST_WAIT_S <= limit_s * spec.time_scale <= LONGEST_WAIT_S:
            raise ValueError(
                f"{name} {limit_s:g} at time_scale {spec.time_scale:g} is {limit_s * spec.time_scale:g} s of wall "
                f"time; with clock: real it is {LEAST_WAIT_S:g} to {LONGEST_WAIT_S:g} s"
            )
    profiles = [part.profile for part in spec.devices.mixture]
    if any(profile.load is not None and profile.load.name != "none" for profile in profiles):
        raise ValueError("load needs clock: simulated: with clock: real the twins go by what was measured")


def _shares(spec: ExperimentSpec) -> None:
    if spec.sync != "round" and spec.schedule == "own_data":
        raise ValueError(f"sync: {spec.sync} needs a schedule that divides samples, such as schedule: free_compute")
    if spec.sync == "step" and spec.momentum:
        raise ValueError("momentum needs sync: round or epoch: with sync: step every worker takes one plain SGD step")
    if spec.sync == "step" and spec.select != "all":
        raise ValueError("select needs sync: round or epoch: with sync: step an epoch is one for all seats")
    if spec.overrun is not None and not spec.plans:
        raise ValueError("overrun needs a schedule that plans shares: free_compute or finish_time")
    if spec.overrun is not None and spec.clock == "real":
        raise ValueError("overrun needs clock: simulated: with clock: real round_deadline_s ends all waits")
    rate = spec.arrival_rate
    if rate is not None and rate > 1 and rate != int(rate):
        raise ValueError(f"arrival_rate {rate:g} is neither a share of a part (up to 1) nor whole samples a round")
    if not spec.plans:
        return
    if spec.late == "next_round":
        raise ValueError("late: next_round needs schedule: own_data or equal: a planned share is planned anew")
    if spec.partial_work:
        raise ValueError("partial_work needs schedule: own_data or equal: a planned share is trained on as a whole")
    if spec.overselection:
        raise ValueError("overselection needs schedule: own_data or equal: of planned shares none is surplus")
