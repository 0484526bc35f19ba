"""`ExperimentSpec`: the description of an experiment, apart from the machines that run it.

`shared.federation.spec_parser` reads a spec from YAML or JSON. Unknown keys are refused with the nearest known one, and
every field has bounds; the second half of this file checks that fields fit together. The algorithm's own parameters are
validated by the algorithm's own model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, model_validator

from shared.core.bounds import LARGEST_EDGES
from shared.core.errors import BadInput
from shared.core.plugins import PluginParams
from shared.core.records import LEFT_OUT, Record, canonical
from shared.core.validation import Names, VisibleText
from shared.simulation import DeviceSpec, EdgeLinkSpec, Parts
from shared.simulation.telemetry import TelemetrySpec
from shared.spec.clock_rules import check_clock
from shared.spec.ends import Stop, Validation, fault_of
from shared.spec.fields import (
    SELECTIONS,
    AlgorithmSpec,
    Association,
    Choice,
    Count,
    DeviceCount,
    EdgeRounds,
    Init,
    LostVisits,
    Metrics,
    Schedule,
    Selection,
    SumBounds,
    Timeouts,
    Twins,
    Vectorised,
    check_edge_rounds,
)
from shared.spec.optimizers import ServerOptimizers, check_optimizer
from shared.spec.rates import LrSchedule, check_rates, factor_at, rate_and_schedule
from shared.spec.sync_rules import check_sync
from shared.spec.synchronisation import Sync
from shared.spec.work_rules import check_work
from shared.training.partition import IidPartition, PartitionSpec, SampledPartition
from shared.training.specs import AugmentSpec, DataSpec, ModelSpec
from shared.wire.codec_settings import CompressionSpec, EdgeCompression

PLANNED = ("free_compute", "finish_time")
"""Schedules that plan shares by digital twins, and plan again what a device did not finish."""


class ExperimentSpec(Record):
    """An experiment's description.

    Attributes:
        init: the model with which the run begins; None means one drawn by the seed.
        loss: what training minimises, in the mean over predictions; None means the loss of the data's kind of target.
        metrics: what evaluations measure; the first is the headline. None named means the metric of the kind of target.
        num_devices: number of devices at the start; None means as many as are connected when the run starts.
        max_devices: number of devices in all. Those beyond `num_devices` wait for agents that connect later. None means
            `num_devices`.
        num_edges: number of edges; None means the number of edges that are connected when the run starts.
        num_rounds: number of cloud rounds in which clients train, over all phases of the algorithm. A phase in which
            devices do not train, as the first of FedMix, adds its rounds to them.
        stop: when a run ends before its last round; None means never.
        validation: samples by which the best round is chosen, and by which `stop` may end a run; None means none.
        edge_rounds: number of edge rounds in each cloud round (above 1: hierarchical FedAvg); a list has one number for
            each edge.
        client: who owns data and a model in the federation: each device, or each edge.
        edge_worker: with `client: edge`, whether the edge's own machine trains a share too.
        local_steps: optimiser steps of a task, in place of `local_epochs`, over as many epochs as it takes; an update
            counts by all of its device's samples.
        lr_schedule: how the devices' learning rate changes from round to round; None means that it is `lr` in all.
        optimizer: of the devices, anew in each task; momentum is that of SGD.
        server_optimizer: the optimisers with which cloud and edges apply mean updates; None means that they add them.
        select, select_params: the policy that selects the devices to train, and the parameters of a plug-in's policy.
        fraction_train: share of an edge's devices that train in an edge round (where `select` is not `all`).
        fraction_candidates: share of an edge's devices that `power_of_choice` draws; None: twice `fraction_train`.
        average_every: where samples are divided, when the edge averages what its devices trained: after a task,
            after each epoch, or after each mini-batch.
        divide_batch: where samples are divided, whether `batch_size` is the batch of all workers together, divided in
            proportion to their shares, so that each takes about as many steps as one machine with all samples would.
        sync: whether edges wait for all their devices, and the cloud for all edges.
        overrun: where shares are planned, the first dispatch ends after this multiple of the planned seconds.
        twins: whether an edge keeps digital twins even if no schedule plans by them. They know their devices at the
            instant of planning, or, with fields such as `{period_s: 10}`, by messages.
        arrival_rate: number of samples that a device collects each round; up to 1, the share of its samples. None means
            that a device has all its samples from the start.
        collected: where samples are divided, whether what devices collect is at their edge already (`at_edge`, for
            nothing), or `travels`: devices send it on their links, and a round divides what has come.
        quorum: share of a round's tasks, over all edges, that must be answered in each edge round. Where edges are
            clients or asynchronous, or where work is divided, each edge needs this share of its own tasks (or samples).
        round_deadline_s: simulated seconds after which an edge round ends; updates that arrive later are late.
        report_deadline_s: simulated seconds of a dispatch after which an edge decides by the announcements it has.
        weights: how much a device's update counts in means that weigh by samples: by its `samples`, each the same
            (`uniform`), or each the same where each device has one whole group of samples, as checked (`group`).
        late: whether a late update is dropped or used in a later round.
        staleness_discount: factor by which the weight of a late update is multiplied for each round that it is old.
        partial_work: whether devices that would be late get fewer steps instead.
        overselection: share of devices selected beyond the wanted number; the first to answer are admitted.
        held_out_fraction: share of the devices that never train and only evaluate.
        test_fraction: share of a client's own samples that is its test set: one number, a distribution, or a list that
            clients take in turn. None means that the data set's test images are dealt like the training images.
        eval_every: number of rounds between evaluations of the global model and of held-out devices; the last round is
            always evaluated.
        eval_every_s: in place of `eval_every`, simulated seconds: the first round to end after each multiple of them is
            evaluated; clients test their models after the last round only.
        test_clients: number of devices, drawn by seed, that are tested where all devices would be: in the evaluation
            after the last round, and of those held out; None means `all` of at most 1000 devices, else 1000.
        test_on: further test sets for the global model and the clients' own models: `union` (all clients' test sets
            together), `unseen` (domains that no client has), or a domain by its name.
        augment: how training images are augmented, and whether originals stay; None means that they are not.
        losses: tasks to leave out: the losses that one run recorded can be repeated in another.
        compression: codecs for parameters that travel between an edge and its devices, up and down.
        edge_compression: codecs for parameters that travel between the cloud and an edge, up and down; with `up` edges
            send means.
        sum_bounds: largest elements of updates; a device that sends a larger one has failed.
        edge_upload: what an edge sends up: `sum`, exact sums (8 bytes a parameter), or `mean`, rounded means (4 bytes).
        clock: `real` makes devices wait as long as the simulation says, and the wall clock decides which are late.
        time_scale: with `clock: real`, wall seconds for each simulated second.
        device: where each process trains and evaluates: its CPU, or a GPU (CUDA).
        vectorised: how many devices an agent trains at once; None means one after another.
    """

    name: VisibleText = Field(default="experiment", min_length=1, max_length=100, description="its name in lists.")
    seed: int = Field(default=0, ge=0, lt=2**53, description="seed of everything that is drawn at random.")
    algorithm: Annotated[AlgorithmSpec, Field(description="the algorithm and its parameters.")] = AlgorithmSpec()
    data: Annotated[
        DataSpec, Field(description="the data set, whole or a part of it, such as {name: digits, n_train: 300}.")
    ] = DataSpec()
    model: Annotated[ModelSpec, Field(description="the model that is trained.")] = ModelSpec()
    init: Annotated[Init | None, LEFT_OUT] = None
    partition: Annotated[PartitionSpec, Field(description="how samples are divided among devices.")] = IidPartition()
    loss: Annotated[Choice | None, LEFT_OUT] = None
    metrics: Metrics = ()

    num_rounds: Count = 10
    stop: Annotated[Stop | None, LEFT_OUT] = None
    validation: Annotated[Validation | None, LEFT_OUT] = None
    edge_rounds: EdgeRounds = 1
    num_edges: Annotated[int, Field(ge=1, le=LARGEST_EDGES)] | None = None
    num_devices: DeviceCount | None = None
    max_devices: DeviceCount | None = None
    min_devices: Annotated[DeviceCount, Field(description="with fewer live devices the run waits.")] = 1
    client: Literal["device", "edge"] = "device"
    edge_worker: bool = True

    local_epochs: Annotated[int, Field(ge=1, le=1000, description="passes over a device's samples in a task.")] = 1
    local_steps: Annotated[Annotated[int, Field(ge=1, le=1_000_000)] | None, LEFT_OUT] = None
    batch_size: Annotated[int, Field(ge=1, le=100_000, description="samples of a mini-batch.")] = 32
    lr: Annotated[float, Field(gt=0, le=100, description="learning rate of the devices.")] = 0.05
    lr_schedule: Annotated[LrSchedule | None, Field(discriminator="name"), LEFT_OUT] = None
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], Field(exclude_if=lambda value: value == "sgd")] = "sgd"
    momentum: Annotated[float, Field(ge=0, lt=1, description="momentum of the devices' SGD.")] = 0.0
    weight_decay: Annotated[float, Field(ge=0, le=10, description="weight decay of the devices' optimiser.")] = 0.0
    server_optimizer: Annotated[ServerOptimizers | None, LEFT_OUT] = None

    select: Selection = "all"
    select_params: PluginParams = Field(default_factory=dict)
    fraction_train: Annotated[float, Field(gt=0, le=1)] = 1.0
    fraction_candidates: Annotated[float, Field(gt=0, le=1)] | None = None
    schedule: Schedule = "own_data"
    average_every: Literal["visit", "epoch", "step"] = "visit"
    divide_batch: Annotated[bool, Field(exclude_if=lambda value: not value)] = False
    sync: Annotated[Sync, Field(exclude_if=lambda value: value == Sync())] = Sync()
    overrun: Annotated[float, Field(ge=1, le=1e6)] | None = None
    twins: Twins = False
    arrival_rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    collected: Annotated[Literal["at_edge", "travels"], Field(exclude_if=lambda where: where == "at_edge")] = "at_edge"
    quorum: Annotated[float, Field(gt=0, le=1)] = 0.5
    round_deadline_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    report_deadline_s: Annotated[float, Field(gt=0, le=1e9)] | None = None
    weights: Annotated[Literal["samples", "uniform", "group"], Field(exclude_if=lambda how: how == "samples")] = (
        "samples"
    )
    late: Literal["drop", "next_round"] = "drop"
    staleness_discount: Annotated[float, Field(gt=0, le=1)] = 0.5
    partial_work: bool = False
    overselection: Annotated[float, Field(ge=0, le=100)] = 0.0
    association: Association = "balanced"
    held_out_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.0
    test_fraction: Parts | None = None
    eval_every: Annotated[int, Field(ge=1, le=100_000)] = 1
    eval_every_s: Annotated[Annotated[float, Field(gt=0, le=1e9)] | None, LEFT_OUT] = None
    test_clients: Literal["all"] | DeviceCount | None = None
    test_on: Names = ()
    augment: AugmentSpec | None = None
    sum_bounds: Annotated[SumBounds, Field(exclude_if=lambda value: value == SumBounds())] = SumBounds()
    edge_upload: Literal["sum", "mean"] = "sum"
    compression: CompressionSpec = CompressionSpec()
    edge_compression: EdgeCompression = CompressionSpec()
    clock: Literal["simulated", "real"] = "simulated"
    time_scale: Annotated[float, Field(gt=0, le=1000)] = 1.0

    device: Literal["cpu", "cuda"] = "cpu"
    vectorised: Vectorised | None = None
    devices: Annotated[DeviceSpec, Field(description="profiles, stragglers, latencies of devices.")] = DeviceSpec()
    edge_link: Annotated[EdgeLinkSpec, Field(description="the links between edges and cloud.")] = EdgeLinkSpec()
    timeouts: Annotated[Timeouts, Field(description="when a wait is given up, in wall seconds.")] = Timeouts()
    losses: Annotated[tuple[LostVisits, ...], Field(max_length=100_000)] = ()

    @model_validator(mode="before")
    @classmethod
    def _short_forms(cls, raw: Any) -> Any:
        """Expand short forms: `data: mnist` is `data: {name: mnist}`, and `lr` may be rate and schedule together."""
        if not isinstance(raw, Mapping):
            return raw
        fields = ("algorithm", "data", "model", "partition", "edge_link", "augment", "lr_schedule")
        short: dict[str, Any] = {k: {"name": raw[k]} for k in fields if isinstance(raw.get(k), str)}
        return {**raw, **short, **rate_and_schedule(raw, cls.model_fields["lr"].default)}

    @model_validator(mode="after")
    def _fits_together(self) -> ExperimentSpec:
        check_fits(self)
        return self

    @property
    def may_refuse(self) -> bool:
        """Whether an edge may refuse an update because of its simulated arrival time (not with `clock: real`)."""
        deadlines = (self.round_deadline_s, self.report_deadline_s)
        limited = any(limit_s is not None for limit_s in deadlines) or self.overselection > 0
        return self.clock == "simulated" and (limited or self.overrun is not None)

    @property
    def plans(self) -> bool:
        """Whether the schedule plans shares by digital twins, and plans unfinished shares again."""
        return self.schedule in PLANNED

    @property
    def keeps_twins(self) -> bool:
        """Whether edges keep digital twins of their devices."""
        return bool(self.twins) or self.plans

    @property
    def telemetry(self) -> TelemetrySpec | None:
        """How devices report to their twins; None means that twins know them at the instant of planning."""
        return None if isinstance(self.twins, bool) else self.twins

    def edge_rounds_at(self, edge: int) -> int:
        """Return the number of edge rounds that an edge has in each cloud round."""
        return self.edge_rounds[edge] if isinstance(self.edge_rounds, tuple) else self.edge_rounds

    @property
    def most_edge_rounds(self) -> int:
        """Number of edge rounds in a cloud round, at the edge that has most; above 1 every edge forms a model."""
        return max(self.edge_rounds) if isinstance(self.edge_rounds, tuple) else self.edge_rounds

    @property
    def sends_means(self) -> bool:
        """Whether an edge that forms no model sends the mean of its devices' updates in place of their exact sum."""
        return self.edge_upload == "mean" or self.edge_compression.up is not None

    def lr_at(self, round_no: int) -> float:
        """Return the learning rate of devices in a round."""
        if self.lr_schedule is None:
            return self.lr
        return self.lr * factor_at(self.lr_schedule, round_no, self.num_rounds)

    @property
    def epochs_a_visit(self) -> int:
        """Number of local epochs of one task."""
        return self.local_epochs if self.average_every == "visit" else 1

    @property
    def versions(self) -> int:
        """Number of times that a training sample comes in an epoch: twice if augmented copies expand the set."""
        return 1 if self.augment is None else self.augment.versions

    def resolved(self, *, n_devices: int, n_edges: int, profiles: Iterable[str] = ()) -> ExperimentSpec:
        """Return the spec with what it leaves open taken from the connected devices, agents' profiles and edges.

        Raises:
            BadInput: a list with an entry for each device or edge does not fit these numbers.
        """
        num_devices = self.num_devices or max(min(n_devices, self.max_devices or n_devices), 1)
        max_devices = self.max_devices or num_devices
        num_edges = self.num_edges or max(min(n_edges, max_devices), 1)
        try:
            self.devices.check_latencies(max_devices, num_edges)
            self.devices.check_rows(max_devices)
            check_edge_rounds(self.edge_rounds, num_edges)
        except ValueError as error:
            raise BadInput(str(error), field=str(error).partition(" ")[0].rstrip(":")) from None
        devices = self.devices.resolved(profiles)
        return self.replace(num_devices=num_devices, num_edges=num_edges, max_devices=max_devices, devices=devices)

    def quorum_of(self, n: int) -> int:
        """Return how many of n must answer; 0.28 of 25 is 7, though its product is a little more in floating point."""
        return math.ceil(self.quorum * n - 1e-9)

    def lost_visits_in(self, round_no: int, edge_round: int, wave: int) -> frozenset[int]:
        """Return the devices whose tasks `losses` leaves out in this dispatch."""
        here = [loss for loss in self.losses if loss.round_no == round_no]
        here = [loss for loss in here if loss.edge_round in (None, edge_round) and loss.wave in (None, wave)]
        return frozenset(seat for loss in here for seat in loss.seats)

    def digest(self) -> str:
        """Return the sha256 of the spec as canonical JSON."""
        return hashlib.sha256(canonical(self).encode()).hexdigest()


S = TypeVar("S", bound=ExperimentSpec)


def check_fits(spec: ExperimentSpec) -> None:
    """Check that the fields of a spec fit together.

    Raises:
        ValueError: two fields contradict each other; the message begins with the name of the field at fault.
    """
    _numbers(spec)
    _selection(spec)
    _deadline(spec)
    check_clock(spec)
    check_work(spec)
    _partition(spec)
    if (fault := fault_of(spec.stop, spec.validation)) is not None:
        raise ValueError(fault)
    _weights(spec)
    if spec.eval_every_s is not None and spec.eval_every != 1:
        raise ValueError("eval_every_s and eval_every: a run is evaluated by simulated seconds or by rounds")
    check_sync(spec)
    check_rates(spec.lr_schedule, spec.num_rounds)
    check_optimizer(spec.optimizer, spec.momentum, spec.average_every, vectorised=spec.vectorised is not None)


def _partition(spec: ExperimentSpec) -> None:
    if not isinstance(spec.partition, SampledPartition):
        return
    if spec.client == "edge":
        raise ValueError("partition sampled needs client: device: each device draws its own samples")
    if spec.clock == "real" and spec.round_deadline_s is None:
        raise ValueError(
            "partition sampled with clock: real needs round_deadline_s: no wait can follow from all devices"
        )
    if spec.schedule != "own_data":
        raise ValueError("partition sampled needs schedule: own_data: devices may have the same samples")


def _weights(spec: ExperimentSpec) -> None:
    if spec.weights == "samples":
        return
    if spec.schedule != "own_data" or spec.client == "edge":
        raise ValueError(
            f"weights: {spec.weights} needs schedule: own_data and client: device, each with its own samples"
        )
    if spec.sync != Sync():
        raise ValueError(f"weights: {spec.weights} needs tiers that wait for all (sync: synchronous)")
    if spec.late == "next_round" and spec.staleness_discount < 1:
        raise ValueError(
            f"weights: {spec.weights} needs staleness_discount: 1 with late: next_round: an update counts whole"
        )


def _numbers(spec: ExperimentSpec) -> None:
    n_seats = spec.num_devices if spec.max_devices is None else spec.max_devices
    spec.devices.check_latencies(n_seats, spec.num_edges)
    spec.devices.check_rows(n_seats)
    check_edge_rounds(spec.edge_rounds, spec.num_edges)
    if spec.num_devices is None:
        return
    if spec.max_devices is not None and spec.max_devices < spec.num_devices:
        raise ValueError(f"max_devices {spec.max_devices} is below num_devices {spec.num_devices}")
    if spec.min_devices > spec.num_devices:
        raise ValueError(f"min_devices {spec.min_devices} is above num_devices {spec.num_devices}")


def _selection(spec: ExperimentSpec) -> None:
    if spec.fraction_train < 1 and spec.select == "all":
        *names, last = (name for name in SELECTIONS if name != "all")
        raise ValueError(f"fraction_train below 1 needs select: {', '.join(names)} or {last}")
    if spec.fraction_candidates is not None:
        if spec.select != "power_of_choice":
            raise ValueError("fraction_candidates needs select: power_of_choice")
        if spec.fraction_candidates < spec.fraction_train:
            raise ValueError("fraction_candidates is below fraction_train: candidates are at least those that train")
    if spec.overselection and spec.select == "all":
        raise ValueError("overselection needs a policy that does not select all, such as select: random")
    if spec.overselection and spec.fraction_train == 1:
        raise ValueError("overselection needs fraction_train below 1: all devices are selected already")


def _deadline(spec: ExperimentSpec) -> None:
    if spec.late == "next_round" and spec.round_deadline_s is None:
        raise ValueError("late: next_round needs round_deadline_s: without a deadline no update is late")
    if spec.partial_work and spec.round_deadline_s is None and spec.report_deadline_s is None:
        raise ValueError("partial_work needs round_deadline_s: without a deadline no task has to be cut short")
    if spec.report_deadline_s is None or spec.round_deadline_s is None:
        return
    if spec.report_deadline_s >= spec.round_deadline_s:
        raise ValueError(
            "report_deadline_s is not below round_deadline_s: updates need time to travel after the reports"
        )
