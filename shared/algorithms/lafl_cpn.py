"""LAFL-CPN.

Y. Zhao, S. Chen: Local Adaptive Federated Learning with Channel Personalized Normalization. Journal of Electronics &
Information Technology, 2024 (in Chinese), equations 2 to 9, algorithm 1.

    z          = (x - mean_c) / std_c, for each colour channel c over all of a client's training images     (3)-(5)
    init_i     = theta_i + (theta_g - theta_i) * [1, ..., 1; W_i]                                           (6), (7)
    W_i       <- W_i - eta * dL(init_i)/dW_i on s % of the client's images, all else frozen                     (8)
    theta_i   <- SGD on all images from init_i                                                         algorithm 1
    theta_g    = sum_i n_i / n * theta_i                                                                   (2), (9)

theta_g is the global model received, theta_i the client's own model of its last visit. W_i has the shape of the top `p`
layers and is initially 1. The third part of the method, RandAugment, is set by the spec's `augment`, since the paper
gives it to all methods; that it *expands* the set of images, as the paper says, is `augment.when: expand`. `p: 0` with
`normalise: fixed` is FedAvg, bit for bit.

Readings; where the paper is silent, those of FedALA (J. Zhang et al., AAAI 2023), from which (6)-(8) come:

- dL/dW = dL/d(init) * (theta_g - theta_i), by the chain rule, one step for each mini-batch, after which the mix is
  recomputed. The network runs in training mode, and the batch-norm statistics of these passes are discarded.
- Rounds are counted for each client. In its first visit there is nothing to mix. In the second, W is learned until the
  losses of the last 10 passes have a standard deviation below 0.1, for at most `max_passes`; later in one pass. The
  numbers are FedALA's, the rule differs: the loss of a pass is its mean (in public copies of FedALA that of its last
  batch), and 10 passes are enough (FedALA takes more than 10).
- Lower layers are copied from the global model, buffers too. A layer is a convolution or linear module with the
  batch-norm that follows it, the last are those that the forward pass uses last; a `p` larger than the model means all.
- Mean and std are measured once, before the first training, on one augmented draw of all images (`stats: raw`: on the
  images as they are; with `augment.when: expand`: on the expanded set), as integer sums of pixels and of their squares,
  in one pass. A client that has lost its state uses its statistics as the cloud broadcasts them.
- A client's test images are normalised with the statistics of that client, which the cloud therefore broadcasts
  (`test_stats: own`: with the tester's). Images of no client are normalised with the tester's, at the cloud with the
  pooled statistics of all clients. Only sums are sent, never images. In its first visit a client knows only its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from shared.federation.hooks import (
    Advance,
    Algorithm,
    Begin,
    Broadcast,
    CloudHooks,
    Context,
    Count,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Finish,
    Footprint,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    Nothing,
    Outcome,
    OwnBuffers,
    Passes,
    PerClient,
    PersonalParams,
    Record,
    Samples,
    Score,
    Seat,
    Task,
    Tensor,
    TensorMap,
    Trainer,
    Transform,
    WireError,
    add,
    delta_of,
    only,
    overlay,
    own_buffers,
    personal_tensors,
    starting_model,
    test_by_owner,
)
from shared.plots.algorithm_pictures import figure_by_client
from shared.training.data.augmentation import as_pixels
from shared.training.data.channel_statistics import Statistics, measured, normaliser, pooled

SETTLED, WINDOW = 0.1, 10
"""W has converged when the mean losses of the last `WINDOW` passes have a standard deviation below `SETTLED`."""
SHIFT = "relative_shift"
"""Figure of a visit that mixed, and its mean over the visits of an edge's round: see `Mixing.relative_shift`."""


class Params(PersonalParams):
    """The paper's values are the defaults.

    Attributes:
        p: number of layers that are mixed, counted from the output. With 0 a client starts from the global model.
        eta: step size of W.
        s: percentage of a client's images on which W is learned.
        clamp: whether W stays in [0, 1].
        max_passes: the most passes over these images until W converges.
        normalise: by the client's `own` statistics, or by the `fixed` mean and std of 0.5 of all other methods.
        stats: whether the statistics are those of augmented or of raw images.
        test_stats: whether test images of other clients are normalised with their owner's statistics or the tester's.
    """

    count: ClassVar[str] = "p"
    p: Annotated[int, Field(ge=0, le=1000)] = 5
    eta: Annotated[float, Field(ge=0, le=1e3)] = 1.0
    s: Annotated[float, Field(gt=0, le=100)] = 80.0
    clamp: bool = True
    max_passes: Annotated[int, Field(ge=1, le=1000)] = 50
    normalise: Literal["own", "fixed"] = "own"
    stats: Literal["augmented", "raw"] = "augmented"
    test_stats: Literal["owner", "own"] = "owner"


# ---- adaptive aggregation


def mixed_of(ctx: Context[Params]) -> frozenset[str]:
    """Returns the names of the parameters that are mixed."""
    return personal_tensors(ctx, min(ctx.params.p, len(ctx.model.layers))) & {*ctx.model.trainable_names}


@dataclass
class Mixing:
    """The mix of a client's own top layers with those received, and its learned weights W.

    Attributes:
        own, received: theta_i and theta_g, the parameters of the top layers.
        weights: W, of the same shapes.
        eta: step size.
        clamp: whether W stays in [0, 1].
    """

    own: TensorMap
    received: TensorMap
    weights: TensorMap
    eta: float
    clamp: bool
    between: TensorMap = field(init=False)

    def __post_init__(self) -> None:
        self.between = {name: tensor - self.own[name] for name, tensor in self.received.items()}

    def mixed(self) -> TensorMap:
        """Returns theta_i + (theta_g - theta_i) * W."""
        return {name: self.own[name] + step * self.weights[name] for name, step in self.between.items()}  # (7)

    def relative_shift(self) -> float:
        """Returns |(1 - W) d| / |d| with d = theta_g - theta_i: how far the mix lies from theta_g; 0 where d is 0."""
        kept = [((1 - self.weights[name].double()) * step.double()).flatten() for name, step in self.between.items()]
        whole = torch.cat([step.double().flatten() for step in self.between.values()]).norm().item()
        return torch.cat(kept).norm().item() / whole if whole else 0.0

    def learn(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Takes one step of W at the mix in `parameters`, then writes the new mix there."""
        for (name, step), parameter, gradient in zip(self.between.items(), parameters, gradients, strict=True):
            weight = self.weights[name] - self.eta * gradient * step  # (8), by the chain rule through (7)
            self.weights[name] = weight.clamp(0, 1) if self.clamp else weight
            parameter.copy_(self.own[name] + step * self.weights[name])


def converged(losses: Sequence[float]) -> bool:
    """Returns whether the losses of the last passes have converged."""
    return len(losses) >= WINDOW and float(np.std(losses[-WINDOW:])) < SETTLED


# ---- records


class Down(Broadcast):
    """Down: the global model, and the statistics of the clients that have reported them."""

    known: dict[str, Statistics] = Field(default_factory=dict)


class Up(Record):
    """Up: trained minus received; a client's statistics while the cloud does not have them."""

    delta: Annotated[ModelState, Mean(weight="samples")]
    reported: Annotated[dict[str, Statistics], PerClient()] = Field(default_factory=dict)


class Pool(GlobalModel):
    """The cloud's state: the global model and each client's statistics."""

    known: dict[str, Statistics] = Field(default_factory=dict)


class Between(EdgeModel):
    """An edge's state within a round: statistics known to the cloud and newly reported, shifts of visits' mixes."""

    known: dict[str, Statistics] = Field(default_factory=dict)
    reported: dict[str, Statistics] = Field(default_factory=dict)
    shifts: tuple[float, ...] = ()


class Own(OwnBuffers):
    """A client's state: the model of its last visit, W, the number of its visits, its statistics."""

    previous: ModelState = Field(default_factory=dict)
    weights: ModelState = Field(default_factory=dict)
    participations: Count = 0
    statistics: Statistics | None = None


# ---- the tiers


def check(ctx: Context[Params], update: Up) -> None:
    """Validates that statistics have the run's channels, and not more pixels than all training images."""
    channels, height, width = ctx.model.sample.shape
    most = ctx.total_samples * ctx.spec.versions * height * width
    for client, sums in update.reported.items():
        if len(sums.sums) != channels or not 0 < sums.n <= most:
            found = f"{len(sums.sums)} channels of {sums.n} pixels"
            due = f"the data are {channels} of at most {most}"
            raise WireError(f"statistics of {client}: {found}, {due}", field="reported")


class Cloud(CloudHooks[Pool, Down, Up]):
    """Averages models, and keeps the statistics of all clients."""

    def init(self, ctx: Context[Params], model: TensorMap) -> Pool:
        return Pool(model=model)

    def broadcast(self, ctx: Context[Params], state: Pool, edge: int, seats: Sequence[Seat]) -> Down:
        return Down(model=state.model, known=state.known)

    def aggregate(self, ctx: Context[Params], state: Pool, update: Up) -> Pool:
        return Pool(model=add(state.model, update.delta), known={**state.known, **update.reported})  # (9)

    def prepare(self, ctx: Context[Params], state: Pool, owner: str | None) -> Transform | None:
        return normaliser(_statistics_of(ctx, state.known, owner) or pooled(state.known))

    def evaluate(self, ctx: Context[Params], state: Pool, trainer: Trainer) -> dict[str, Score]:
        """Tests on all clients' test sets, each normalised with its owner's statistics."""

        def prepare(owner: str | None) -> Transform | None:
            return self.prepare(ctx, state, owner)

        return {"global": test_by_owner(trainer, state.model, trainer.test_sets["union"], prepare)}


class Edge(EdgeHooks[Between, Down, Up]):
    """Averages models, forwards statistics in both directions, and records the mean shift of its visits' mixes."""

    def init(self, ctx: Context[Params]) -> Between:
        return Between()

    def forms_model(self, ctx: Context[Params]) -> bool:
        return self.spec_forms_model(ctx)

    def begin(self, ctx: Context[Params], state: Between, broadcast: Down) -> Begin[Between]:
        return super().begin(ctx, state.replace(known=broadcast.known, reported={}), broadcast)

    def dispatch(self, ctx: Context[Params], state: Between, seat: Seat) -> Down:
        return Down(model=state.start, known=state.known)

    def aggregate(self, ctx: Context[Params], state: Between, update: Up) -> Between:
        return super().aggregate(ctx, state.replace(reported={**state.reported, **update.reported}), update)  # (2)

    def advance(
        self, ctx: Context[Params], state: Between, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Nothing]]
    ) -> Advance[Between]:
        mixed = [outcome.figures for outcome in outcomes if not outcome.failure and SHIFT in outcome.figures]
        shifts = (*state.shifts, *(float(figures[SHIFT]) for figures in mixed))
        return super().advance(ctx, state.replace(shifts=shifts), tasks, outcomes)

    def finish(self, ctx: Context[Params], state: Between) -> Finish[Between, Up]:
        left = state.replace(start={}, received={}, model={}, known={}, reported={}, shifts=())
        figures = {SHIFT: math.fsum(state.shifts) / len(state.shifts)} if state.shifts else {}
        if not self.forms_model(ctx):
            return Finish(left, figures=figures)
        update = Up(delta=delta_of(ctx, state.model, state.received), reported=state.reported)
        return Finish(left, update, figures)


class Device(DeviceHooks[Own, Down, Up]):
    """Algorithm 1, lines 6 to 18."""

    def init(self, ctx: Context[Params]) -> Own:
        return Own()

    def local_update(self, ctx: Context[Params], state: Own, message: Down, trainer: Trainer) -> Local[Own, Up]:
        known = _own_statistics(ctx, state, message)
        found = known or _measured(ctx, trainer) if ctx.params.normalise == "own" else None
        transform = normaliser(found)
        received = starting_model(state, message)
        start, weights, figures = _mixed_start(ctx, state, received, trainer, transform)
        fit = trainer.fit(ctx, start, transform=transform)  # line 16
        reported = {ctx.client_id: found} if found and found.n and ctx.client_id not in message.known else {}
        after = Own(
            buffers=own_buffers(ctx, fit.model),
            previous=fit.model if ctx.params.p else {},
            weights=weights,
            participations=state.participations + 1,
            statistics=found,
        )
        up = Up(delta=delta_of(ctx, fit.model, received), reported=reported)
        return Local(after, up, fit.model, fit.trained, n_passed=int(figures["weights_n_samples"]), figures=figures)

    def personalise(
        self, ctx: Context[Params], state: Own, message: Down, local: Local[Own, Up] | None, trainer: Trainer
    ) -> TensorMap | None:
        return local.model if local else state.previous or None

    def prepare(self, ctx: Context[Params], state: Own, message: Down, owner: str | None) -> Transform | None:
        theirs = None if owner == ctx.client_id else _statistics_of(ctx, message.known, owner)
        return normaliser(theirs or _own_statistics(ctx, state, message) or pooled(message.known))


def _own_statistics(ctx: Context[Params], state: Own, message: Down) -> Statistics | None:
    """Returns the client's statistics as the cloud broadcasts them, else those in its state."""
    return message.known.get(ctx.client_id) or state.statistics


def _statistics_of(ctx: Context[Params], known: Mapping[str, Statistics], owner: str | None) -> Statistics | None:
    """Returns the owner's statistics if test images use them and they are known."""
    return known.get(owner) if owner is not None and ctx.params.test_stats == "owner" else None


def _measured(ctx: Context[Params], trainer: Trainer) -> Statistics:
    """Measures a client's statistics: on one augmented draw of all its images, or on the images as they are."""
    drawn = trainer.batches(ctx, purpose="statistics", epochs=1, augment=ctx.params.stats == "augmented")
    return measured(as_pixels(x) for x, _ in drawn)


def _mixed_start(
    ctx: Context[Params], state: Own, received: TensorMap, trainer: Trainer, transform: Transform | None
) -> tuple[TensorMap, TensorMap, dict[str, float]]:
    """Returns the model from which local training starts, W, and figures for the record: lines 10 to 15."""
    visit, params, layers = state.participations + 1, ctx.params, mixed_of(ctx)
    if not state.previous or not layers:
        return received, {}, {"visit": visit, "passes": 0, "weights_n_samples": 0}
    top = only(received, layers)
    weights = state.weights or {name: torch.ones_like(tensor) for name, tensor in top.items()}
    mixing = Mixing(only(state.previous, layers), top, dict(weights), params.eta, params.clamp)
    drawn, losses, n_passed = _drawn(ctx, trainer), list[float](), 0
    while not losses or (visit == 2 and len(losses) < params.max_passes and not converged(losses)):
        passed = trainer.fit(
            ctx,
            overlay(received, mixing.mixed()),
            samples=drawn,
            purpose=f"weights {len(losses)}",
            epochs=1,
            trains=layers,
            transform=transform,
            step=mixing.learn,
        )
        losses.append(passed.trained.loss)
        n_passed += passed.trained.n_samples
    figures = {
        "visit": visit,
        "passes": len(losses),
        "weights_n_samples": n_passed,
        SHIFT: mixing.relative_shift(),
        "weights_mean": torch.cat([weight.flatten() for weight in mixing.weights.values()]).mean().item(),
    }
    return overlay(received, mixing.mixed()), mixing.weights, figures


def _drawn(ctx: Context[Params], trainer: Trainer) -> Samples:
    """Returns the s % of a client's images on which W is learned in this visit; line 7."""
    order = torch.randperm(trainer.n_samples, generator=ctx.rng("draw"))
    n = max(round(ctx.params.s / 100 * trainer.n_samples), 1)
    return Samples(trainer.samples.part, trainer.samples.indices[order[:n].numpy()])


PICTURES = figure_by_client("mixing", "LAFL-CPN: shift of mixes from the global model", SHIFT, "|(1 - W) d| / |d|")

ALGORITHM = Algorithm(
    name="lafl_cpn",
    paper="Zhao, Chen: Local Adaptive Federated Learning with Channel Personalized Normalization. "
    "J. of Electronics & Information Technology 2024",
    params=Params,
    samples="images",
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    broadcast=Down,
    update=Up,
    cloud_state=Pool,
    edge_state=Between,
    device_state=Own,
    adds_delta=True,
    needs={"client": "device", "schedule": "own_data"},  # statistics are those of a device's own images
    check=check,
    personal=mixed_of,
    footprint=Footprint(
        passes=lambda params: Passes(extra_per_sample=params.s / 100, max_extra_per_sample=params.max_passes)
    ),
)
