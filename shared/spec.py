"""`ExperimentSpec`: the science of a run, apart from where it runs.

YAML or JSON; unknown keys are refused with the nearest known one; every field has bounds. The algorithm's own
parameters are validated by the algorithm's own model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, model_validator

from shared.core.errors import BadInput
from shared.core.records import Record, canonical
from shared.core.validation import Names, explain
from shared.fits import check_fits
from shared.simulation import DeviceSpec, EdgeLinkSpec, Parts
from shared.sizes import check_counts
from shared.training.data.augmentation import AugmentSpec
from shared.training.data.dataset import DataSpec
from shared.training.models.zoo import ModelSpec
from shared.training.partition import IidPartition, PartitionSpec
from shared.wire.compression.specs import CompressionSpec

Count = Annotated[int, Field(ge=1, le=100_000)]
DIVIDED = ("equal", "free_compute", "finish_time")
"""Schedules that divide the samples of an edge's seats among them, whoever holds them."""
PLANNED = ("free_compute", "finish_time")
"""Those that plan by twins, and plan anew what a worker did not do."""


class LocalSpec(Record):
    """An algorithm whose local objective devices minimise."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")
    params: dict[str, Any] = Field(default_factory=dict, max_length=1000)


class AlgorithmSpec(Record):
    """Which algorithm, with which of its own parameters; `local`: another one's objective for its devices."""

    name: str = Field(default="fedavg", pattern=r"^[a-z][a-z0-9_]{0,63}$")
    params: dict[str, Any] = Field(default_factory=dict, max_length=1000)
    local: LocalSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, raw: Any) -> Any:
        """`local: fedser` stands for `{name: fedser}`."""
        if isinstance(raw, Mapping) and isinstance(raw.get("local"), str):
            return {**raw, "local": {"name": raw["local"]}}
        return raw

    def __str__(self) -> str:
        return self.name if self.local is None else f"{self.name}, local {self.local.name}"


class Timeouts(Record):
    """Wall-clock limits, in seconds. They decide when a wait is given up, never a result that arrives in time."""

    visit_s: float = Field(default=300.0, gt=0, le=86_400)
    ready_s: float = Field(default=120.0, gt=0, le=86_400)
    reseat_after_s: float = Field(default=60.0, ge=0, le=86_400)


class Loss(Record):
    """Contributions that are left out of a round, as if their visits had failed: what faults did to another run.

    Attributes:
        round_no: the round, from 1.
        seats: whose visits are not made.
        edge_round, wave: only in this one; None = in all.
    """

    round_no: Count
    seats: Annotated[tuple[Annotated[int, Field(ge=0, lt=100_000)], ...], Field(max_length=100_000)]
    edge_round: Annotated[int, Field(ge=0, lt=10**6)] | None = None
    wave: Annotated[int, Field(ge=0, lt=1000)] | None = None


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
        return self.but(num_devices=num_devices, num_edges=num_edges, max_devices=max_devices)

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


def parse_spec(raw: Any) -> ExperimentSpec:
    """Validate a mapping as a spec, algorithm parameters included.

    Raises:
        BadInput: naming the field's path, the cause, and for an unknown key the nearest known one.
    """
    return parse_as(raw, ExperimentSpec)


def parse_as(raw: Any, kind: type[S]) -> S:
    """Validate a mapping as a spec of a kind, as `parse_spec` does."""
    if not isinstance(raw, Mapping):
        raise BadInput(f"a spec is a mapping of fields, not {type(raw).__name__}")
    try:
        spec = kind.model_validate(dict(raw))
    except ValidationError as error:
        raise explain(error, kind) from None
    check_names(spec)
    check_counts(spec)
    return spec


def check_names(spec: ExperimentSpec) -> None:
    """Refuse unknown names of algorithm, model, data and test sets, and what does not fit the algorithm or the data."""
    from shared.algorithms import load_algorithm, load_local
    from shared.test_sets import check_test_on
    from shared.training.data.digit_domains import check_data, check_partition, names_of
    from shared.training.models import check_name as check_model

    load_algorithm(spec.algorithm.name).check_spec(spec)
    load_local(spec)
    check_data(spec.data)
    check_partition(spec)
    check_test_on(spec, names_of(spec.data))
    check_model(spec.model.name, spec.model.width)
