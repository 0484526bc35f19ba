"""FedMix.

T. Yoon, S. Shin, S. J. Hwang, E. Yang: FedMix: Approximation of Mixup under Mean Augmented Federated Learning. ICLR
2021, algorithms 1 (the framework, MAFL) and 2 (FedMix), equation 4.

    phase mash, one round    client k averages its images and its labels, M_k at a time, and sends these means
    phase train              every client holds the means of all clients, the mash; for each batch (x, y) it draws one
                             entry (xg, yg) of the mash

    l = (1 - lam) l(f((1 - lam) x), y) + lam l(f((1 - lam) x), yg) + lam dl/dx . xg                       (4)

dl/dx is taken at (1 - lam) x and y; the last term is the first-order term of mixing x with the images averaged in xg.
`mix: naive` is the paper's NaiveMix, mixup with the means themselves: (1 - lam) l(f(m), y) + lam l(f(m), yg) at
m = (1 - lam) x + lam xg. With lam = 0 nothing is collected and it is FedAvg, bit for bit.

The mash is sent once to each edge, which stores it, and once to each device, which keeps it in its state. It is part of
the first messages of the training rounds and counted in their bytes. An update says at which edge the device is and how
many entries it holds; from that the cloud knows which edges have the mash.

Deviations and readings:

- M_k is by default the number of all samples of a client, as in the paper's experiments: one entry for each client.
  With a smaller M_k samples are averaged in shuffled order, and the last mean is of the remaining ones.
- The paper's lam is 0.05 for CIFAR-10 (CIFAR-100: 0.1, FEMNIST: 0.2), and 0.1 for NaiveMix (0.1, 0.2).
- Images are averaged as the model gets them, from -1 to 1.
- The mash has the means of the clients that answered in the phase `mash`; it does not grow later. In that phase all
  seats are selected, whatever the spec's `select` says.
- A device without the mash (its state or its edge's was lost) trains as in FedAvg and reports that. It gets the mash
  with its next visit, and its edge gets it in the next round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import ceil, prod
from typing import Annotated, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

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
    EdgeView,
    ExperimentSpec,
    Finish,
    Footprint,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    Nothing,
    Objective,
    Outcome,
    OwnBuffers,
    PerClient,
    Phase,
    Record,
    Samples,
    Seat,
    Task,
    Tensor,
    TensorMap,
    Trainer,
    WireError,
    delta_of,
    one_phase,
    operations,
    own_buffers,
    starting_model,
    uploaded_names,
)

ROUNDED = 1e-3
"""Bounds the rounding error of averaged pixels and label shares."""


class Params(Record):
    """Parameters of the mix.

    Attributes:
        lam: mixup ratio.
        mash: M_k, the number of samples in one mean.
        mix: the loss, (4) or NaiveMix.
    """

    lam: Annotated[float, Field(ge=0, le=1)] = 0.05
    mash: Annotated[int, Field(ge=2, le=10**9)] | Literal["all"] = "all"
    mix: Literal["fedmix", "naive"] = "fedmix"


class Mash(Record):
    """Averaged images and labels.

    Attributes:
        images: float32, (entries, channels, height, width), from -1 to 1.
        labels: float32, (entries, classes); the shares of an entry add up to 1.
    """

    images: Tensor
    labels: Tensor

    @model_validator(mode="after")
    def _are_averages(self) -> Self:
        images, labels = self.images, self.labels
        if (images.ndim, labels.ndim, images.dtype, labels.dtype) != (4, 2, torch.float32, torch.float32):
            found = f"{images.dtype} {tuple(images.shape)} and {labels.dtype} {tuple(labels.shape)}"
            raise ValueError(f"images and labels are float32 of 4 and 2 dimensions, not {found}")
        if len(images) != len(labels) or not labels.numel() or not images.numel():
            raise ValueError(f"images are {tuple(images.shape)}, labels {tuple(labels.shape)}")
        if images.abs().max() > 1 + ROUNDED:  # NaN passes here: summation rejects it
            raise ValueError("an image is not from -1 to 1")
        if labels.min() < -ROUNDED or (labels.sum(1) - 1).abs().max() > ROUNDED:
            raise ValueError("the labels of an entry are not shares that add up to 1")
        return self


class Held(Record):
    """The number of mash entries that a device holds, and the edge at which it is."""

    edge: int
    entries: Count


class Mixed(Broadcast):
    """Down: the model, and the mash for edges and devices that do not have it yet."""

    mash: Mash | None = None


class Change(Record):
    """Up: trained minus received; by client, its means in the phase `mash`, and later what it holds of the mash."""

    delta: Annotated[ModelState, Mean(weight="samples")]
    averages: Annotated[dict[str, Mash], PerClient()] = Field(default_factory=dict)
    held: Annotated[dict[str, Held], PerClient()] = Field(default_factory=dict)


class Federation(GlobalModel):
    """The cloud's state: the model, the mash of all clients, and the edges that have it."""

    mash: Mash | None = None
    edges: tuple[int, ...] = ()


class Relay(EdgeModel):
    """An edge's state: the mash, the seats that have it, and within a round what its devices reported to hold."""

    mash: Mash | None = None
    seats: tuple[int, ...] = ()
    held: dict[str, Held] = Field(default_factory=dict)


class Own(OwnBuffers):
    """A device's state: the mash, once received."""

    mash: Mash | None = None


def phases(spec: ExperimentSpec, params: Params) -> tuple[Phase, ...]:
    """Returns one round of collecting before the spec's rounds; none if lam is 0."""
    if not params.lam:
        return one_phase(spec, params)
    return Phase("mash", 1, kind="collect"), Phase("train", spec.num_rounds)


# ---- the mash


def averaged(ctx: Context[Params], trainer: Trainer, n_classes: int) -> Mash:
    """Returns the means of a client's images and labels, of M_k samples each."""
    labels = trainer.arrays("train")[1]
    order = torch.randperm(trainer.n_samples, generator=ctx.rng("mash"))
    size = trainer.n_samples if ctx.params.mash == "all" else ctx.params.mash
    parts = [trainer.samples.indices[part.numpy()] for part in torch.split(order, size)]
    means = [trainer.inputs(Samples("train", part)).mean(0) for part in parts]
    shares = [one_hot(torch.from_numpy(labels[part]), n_classes).to(torch.float32).mean(0) for part in parts]
    return Mash(images=torch.stack(means), labels=torch.stack(shares))


def united(parts: Mapping[str, Mash]) -> Mash | None:
    """Returns the mash of all clients, in the order of the clients' names; None if there are no means."""
    each = [parts[client] for client in sorted(parts)]
    if not each:
        return None
    return Mash(images=torch.cat([one.images for one in each]), labels=torch.cat([one.labels for one in each]))


def mixing(mash: Mash, params: Params, generator: torch.Generator) -> Objective:
    """Returns the objective that mixes a batch with one entry of the mash, drawn by the generator."""
    lam = params.lam

    def entry(x: Tensor) -> tuple[Tensor, Tensor]:
        drawn = int(torch.randint(len(mash.images), (), generator=generator))
        return mash.images[drawn], mash.labels[drawn].expand(len(x), -1)

    def fedmix(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        xg, yg = entry(x)
        scaled = ((1 - lam) * x).requires_grad_()
        logits = model(scaled)
        loss = cross_entropy(logits, y)
        (slope,) = torch.autograd.grad(loss, scaled, create_graph=True)  # each image's, divided by the batch size
        return (1 - lam) * loss + lam * cross_entropy(logits, yg) + lam * (slope * xg).sum(), logits  # (4)

    def naive(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        xg, yg = entry(x)
        logits = model((1 - lam) * x + lam * xg)
        return (1 - lam) * cross_entropy(logits, y) + lam * cross_entropy(logits, yg), logits

    return fedmix if params.mix == "fedmix" else naive


def mean_operations(params: Params, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Returns the operations of a step on (4); the images have shapes but no values, so the mash is not validated."""
    if not params.lam:
        return operations(lambda: cross_entropy(model(x), y))
    n_classes = model(x).shape[1]
    mash = Mash.model_construct(images=x[:1], labels=one_hot(y[:1], n_classes).to(torch.float32))
    mix = mixing(mash, params, torch.Generator())
    return operations(lambda: mix(model, x, y)[0])


def gathers(ctx: Context[Params]) -> Mapping[str, int]:
    """A process holds the mash at least twice: as received from clients, and concatenated."""
    params = ctx.params
    entries = ctx.n_clients if params.mash == "all" else ctx.total_samples / params.mash
    entry_bytes = 4 * (prod(ctx.model.sample.shape) + ctx.model.target.n_outputs)
    return {"mash": ceil(2 * entries * entry_bytes)} if params.lam else {}


def check(ctx: Context[Params], update: Change) -> None:
    """Validates means in the phase `mash` (shape and number) and what is held of the mash in later phases."""
    of_another_phase = "held" if ctx.phase == "mash" else "averages"
    if getattr(update, of_another_phase):
        raise WireError(f"{of_another_phase}: none are sent in the phase {ctx.phase}", field=of_another_phase)
    most = 1 if ctx.params.mash == "all" else ceil(ctx.total_samples / ctx.params.mash)
    for client, mash in update.averages.items():
        shape, n_classes = tuple(mash.images.shape[1:]), mash.labels.shape[1]
        due = ctx.model.sample.shape, ctx.model.target.n_outputs
        if (shape, n_classes) != due or len(mash.images) > most:
            found = f"{len(mash.images)} of images {shape} and {n_classes} classes"
            allowed = f"at most {most} of images {due[0]} and {due[1]} classes"
            raise WireError(f"averages of {client}: {found}, there can be {allowed}", field="averages")
    for client, held in update.held.items():
        if held.edge != ctx.edge:
            raise WireError(f"held of {client}: it is at edge {ctx.edge}, not {held.edge}", field="held")


# ---- the three tiers


class Cloud(CloudHooks[Federation, Mixed, Change]):
    """Concatenates the means of all clients, and sends the mash to edges that do not have it."""

    def init(self, ctx: Context[Params], model: TensorMap) -> Federation:
        return Federation(model=model)

    def broadcast(self, ctx: Context[Params], state: Federation, edge: int, seats: Sequence[Seat]) -> Mixed:
        return Mixed(model=state.model, mash=None if edge in state.edges else state.mash)

    def aggregate(self, ctx: Context[Params], state: Federation, update: Change) -> Federation:
        after = super().aggregate(ctx, state, update)
        if update.averages:
            return after.replace(mash=united(update.averages))
        reported = update.held.values()
        lacking = {held.edge for held in reported if not held.entries}
        return after.replace(edges=tuple(sorted(({*state.edges} | {held.edge for held in reported}) - lacking)))


class Edge(EdgeHooks[Relay, Mixed, Change]):
    """Stores the mash, and sends it to devices that do not have it."""

    def init(self, ctx: Context[Params]) -> Relay:
        return Relay()

    def begin(self, ctx: Context[Params], state: Relay, broadcast: Mixed) -> Begin[Relay]:
        begun = super().begin(ctx, state.replace(mash=broadcast.mash or state.mash), broadcast)
        return replace(begun, edge_rounds=1) if ctx.phase == "mash" else begun

    def forms_model(self, ctx: Context[Params]) -> bool:
        return ctx.phase != "mash" and self.spec_forms_model(ctx)

    def select(self, ctx: Context[Params], state: Relay, seats: Sequence[Seat], view: EdgeView) -> list[int]:
        return [seat.number for seat in seats] if ctx.phase == "mash" else super().select(ctx, state, seats, view)

    def dispatch(self, ctx: Context[Params], state: Relay, seat: Seat) -> Mixed:
        has_it = seat.number in state.seats or seat.role == "held_out"
        return Mixed(model=state.start, mash=None if has_it else state.mash)

    def aggregate(self, ctx: Context[Params], state: Relay, update: Change) -> Relay:
        return super().aggregate(ctx, state, update).replace(held=state.held | update.held)

    def advance(
        self, ctx: Context[Params], state: Relay, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Nothing]]
    ) -> Advance[Relay]:
        entries_of = {outcome.seat: outcome.figures.get("mash", 0) for outcome in outcomes if not outcome.failure}
        have = {*state.seats} - entries_of.keys() | {seat for seat, entries in entries_of.items() if entries}
        return super().advance(ctx, state.replace(seats=tuple(sorted(have))), tasks, outcomes)

    def finish(self, ctx: Context[Params], state: Relay) -> Finish[Relay, Change]:
        between = state.replace(start={}, received={}, model={}, held={})
        if not self.forms_model(ctx):
            return Finish(between)
        return Finish(between, Change(delta=delta_of(ctx, state.model, state.received), held=state.held))


class Device(DeviceHooks[Own, Mixed, Change]):
    """Averages its samples in the phase `mash`, then trains on (4)."""

    def init(self, ctx: Context[Params]) -> Own:
        return Own()

    def local_update(self, ctx: Context[Params], state: Own, message: Mixed, trainer: Trainer) -> Local[Own, Change]:
        if ctx.phase == "mash":
            mine = {ctx.client_id: averaged(ctx, trainer, ctx.model.target.n_outputs)} if trainer.n_samples else {}
            return Local(state, Change(delta={}, averages=mine))
        start, mash = starting_model(state, message), message.mash or state.mash
        mix = mixing(mash, ctx.params, ctx.rng("mix")) if mash else None
        fit = trainer.fit(ctx, start, objective=mix)
        entries = len(mash.images) if mash else 0
        held = {ctx.client_id: Held(edge=ctx.edge or 0, entries=entries)} if ctx.params.lam else {}
        own = Own(buffers=own_buffers(ctx, fit.model), mash=mash)
        update = Change(delta=delta_of(ctx, fit.model, start), held=held)
        return Local(own, update, fit.model, fit.trained, figures={"mash": entries} if ctx.params.lam else {})


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """The deltas of all that travels; nothing while the mash is collected."""
    return {"delta": uploaded_names(ctx, model)} if ctx.phase != "mash" else {}


ALGORITHM = Algorithm(
    name="fedmix",
    paper="Yoon et al.: FedMix: Approximation of Mixup under Mean Augmented Federated Learning. ICLR 2021",
    params=Params,
    samples="numbers",
    targets=("classes",),
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    broadcast=Mixed,
    update=Change,
    cloud_state=Federation,
    edge_state=Relay,
    device_state=Own,
    adds_delta=True,
    phases=phases,
    own_objective=lambda params: params.lam > 0,
    check=check,
    needs={"client": "device"},
    footprint=Footprint(sends=sends, gathers=gathers, flops=mean_operations),
)
