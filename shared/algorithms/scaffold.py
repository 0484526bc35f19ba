"""SCAFFOLD.

S. P. Karimireddy, S. Kale, M. Mohri, S. J. Reddi, S. U. Stich, A. T. Suresh: SCAFFOLD: Stochastic Controlled Averaging
for Federated Learning. ICML 2020, algorithm 1, equations 3 to 5.

    x, c         global model and control variate, y_i, c_i: those of client i; c and c_i are initially 0
    y_i         <- y_i - eta_l (g_i(y_i) - c_i + c)         K steps from x                              (3)
    c_i+         = I.  g_i(x)                                                                           (4)
                   II. c_i - c + (x - y_i) / (K eta_l)
    x           <- x + eta_g / |S| sum_S (y_i - x)                                                      (5)
    c           <- c + 1 / N sum_S (c_i+ - c_i)                                                         (5)

Devices keep c_i. A client whose update was not used restores its previous one, so that c stays the mean of all c_i; N
counts all training clients of the run, offline ones included. `option: none` keeps all controls at 0; with `server_lr:
1` that is FedAvg with plain means, bit for bit.

Deviations and readings:

- Clients have equal weights, as in the paper; so have edges that form models of their own (`edge_rounds` above 1).
- A client sends its part (c_i+ - c_i) / N. An edge that forms a model sends the sum of these parts over all its edge
  rounds, which all use the c of the cloud's round.
- I is one pass over the client's samples at x, in batches; it takes simulated time like an epoch.
- With momentum, II has `momentum_step_factor` in the place of K, so that c_i+ stays a mean of gradients.
- Only trainable parameters have controls; buffers follow `buffers`. eta_g applies to parameters; buffers are averaged.
- A client that has lost its state starts with c_i = 0 again, while c still contains its previous one. From then on c
  differs from the mean by 1 / N of it, and training converges to a slightly different point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import nn

from shared.federation.hooks import (
    Advance,
    Algorithm,
    Begin,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Elementwise,
    Finish,
    Fit,
    Footprint,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    Nothing,
    Outcome,
    OwnBuffers,
    Passes,
    Record,
    Seat,
    Task,
    Tensor,
    TensorMap,
    Trainer,
    Training,
    add,
    delta_of,
    momentum_step_factor,
    only,
    own_buffers,
    starting_model,
    subtract,
    uploaded_names,
)


class Params(Record):
    """option: how a client updates its control; server_lr: eta_g, 1 in the paper's experiments."""

    option: Literal["I", "II", "none"] = "II"
    server_lr: Annotated[float, Field(gt=0, le=1e3)] = 1.0


class Controlled(Broadcast):
    """Down: x and c; c is empty while it is 0."""

    control: ModelState = Field(default_factory=dict)


class Change(Record):
    """Up: y_i - x, and (c_i+ - c_i) / N."""

    delta: Annotated[ModelState, Mean(weight="one")]
    control: Annotated[ModelState, Mean(weight="one")] = Field(default_factory=dict)


class Federation(GlobalModel):
    """The cloud's state: x and c."""

    control: ModelState = Field(default_factory=dict)


class Relay(EdgeModel):
    """An edge's state within a round.

    Attributes:
        control: c.
        before, changed: by how much its devices changed c, before the present edge round and in total.
    """

    control: ModelState = Field(default_factory=dict)
    before: ModelState = Field(default_factory=dict)
    changed: ModelState = Field(default_factory=dict)


class Own(OwnBuffers):
    """A device's state: c_i; empty while it is 0."""

    control: ModelState = Field(default_factory=dict)


# ---- algebra of controls, where an empty map is 0


def plus(a: TensorMap, b: TensorMap, factor: float = 1.0) -> TensorMap:
    """Returns a + factor * b."""
    scaled = {name: tensor * factor for name, tensor in b.items()}
    return add(a, scaled) if a and b else a or scaled


def shift_by(parameters: list[Tensor], gradients: list[Tensor], shifts: list[Tensor]) -> None:
    """Adds c - c_i to the gradients."""
    torch._foreach_add_(gradients, shifts)  # (3)


def correction(own: TensorMap, all_: TensorMap, names: Sequence[str]) -> Elementwise | None:
    """Returns the correction that adds c - c_i to the gradients of these parameters; None if both are 0."""
    shift = plus(all_, own, -1.0)
    return Elementwise(shift_by, ([shift[name] for name in names],)) if shift else None


class Sum:
    """A step that leaves the parameters as they are and sums the gradients."""

    def __init__(self) -> None:
        self.total: list[Tensor] = []

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Adds a batch's gradients."""
        if self.total:
            torch._foreach_add_(self.total, gradients)
        else:
            self.total = gradients


def gradient_at(ctx: Context[Params], start: TensorMap, trainer: Trainer) -> TensorMap:
    """Returns g_i(x), the gradient of the mean loss over the client's samples at one model."""
    target, total = ctx.model.target, Sum()
    n = max(target.n_predictions(torch.from_numpy(trainer.arrays("train")[1][trainer.samples.indices])), 1)

    def part(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        outputs = model(x)
        return target.loss_sum(outputs, y) / n, outputs

    trainer.fit(ctx, start, epochs=1, purpose="control", objective=part, step=total)
    return dict(zip(ctx.model.trainable_names, total.total, strict=True)) if total.total else {}


# ---- the three tiers


def sends(ctx: Context[Params], model: TensorMap) -> Mapping[str, frozenset[str]]:
    """Updates have a change of c for each trainable parameter, unless `option` is `none`."""
    controls = ctx.model.trainable_names if ctx.params.option != "none" else ()
    return {"delta": uploaded_names(ctx, model), "control": frozenset(controls)}


class Cloud(CloudHooks[Federation, Controlled, Change]):
    """Steps along the mean update; c stays the mean of all c_i."""

    def init(self, ctx: Context[Params], model: TensorMap) -> Federation:
        return Federation(model=model)

    def broadcast(self, ctx: Context[Params], state: Federation, edge: int, seats: Sequence[Seat]) -> Controlled:
        return Controlled(model=state.model, control=state.control)

    def aggregate(self, ctx: Context[Params], state: Federation, update: Change) -> Federation:
        rate = ctx.params.server_lr
        step = {name: delta if name in ctx.model.buffer_names else delta * rate for name, delta in update.delta.items()}
        model = add(state.model, step)  # (5)
        return Federation(model=model, control=plus(state.control, update.control, ctx.n_updates))  # (5)


class Edge(EdgeHooks[Relay, Controlled, Change]):
    """Forwards c; if it forms a model, it adds up its devices' changes of c."""

    def init(self, ctx: Context[Params]) -> Relay:
        return Relay()

    def begin(self, ctx: Context[Params], state: Relay, broadcast: Controlled) -> Begin[Relay]:
        return super().begin(ctx, Relay(control=broadcast.control), broadcast)

    def forms_model(self, ctx: Context[Params]) -> bool:
        return self.spec_forms_model(ctx)

    def dispatch(self, ctx: Context[Params], state: Relay, seat: Seat) -> Controlled:
        return Controlled(model=state.start, control=state.control)

    def aggregate(self, ctx: Context[Params], state: Relay, update: Change) -> Relay:
        changed = plus(state.before, update.control, ctx.n_updates)
        return super().aggregate(ctx, state, update).replace(changed=changed)

    def advance(
        self, ctx: Context[Params], state: Relay, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Nothing]]
    ) -> Advance[Relay]:
        return super().advance(ctx, state.replace(before=state.changed), tasks, outcomes)

    def finish(self, ctx: Context[Params], state: Relay) -> Finish[Relay, Change]:
        if not self.forms_model(ctx):
            return Finish(Relay())
        return Finish(Relay(), Change(delta=delta_of(ctx, state.model, state.received), control=state.changed))


class Device(DeviceHooks[Own, Controlled, Change]):
    """Corrects each gradient by c - c_i, then updates c_i."""

    def init(self, ctx: Context[Params]) -> Own:
        return Own()

    def training(self, ctx: Context[Params], state: Own, message: Controlled) -> Training:
        start = starting_model(state, message)
        return Training(start, correction(state.control, message.control, ctx.model.trainable_names))

    def learned(
        self, ctx: Context[Params], state: Own, message: Controlled, training: Training, fit: Fit, trainer: Trainer
    ) -> Local[Own, Change]:
        start, names = training.start, ctx.model.trainable_names
        control = state.control
        if ctx.params.option == "I":
            control = gradient_at(ctx, start, trainer)  # (4), I
        elif ctx.params.option == "II" and fit.trained.n_steps:
            moved = subtract(only(start, names), fit.model)
            length = ctx.lr * momentum_step_factor(fit.trained.n_steps, ctx.spec.momentum)
            control = plus(plus(state.control, message.control, -1.0), moved, 1 / length)  # (4), II
        zeros = {name: torch.zeros_like(start[name]) for name in names} if ctx.params.option != "none" else {}
        change = plus(plus(zeros, control), state.control, -1.0)
        update = Change(delta=delta_of(ctx, fit.model, start), control=plus({}, change, 1 / ctx.total_clients))
        own = Own(buffers=own_buffers(ctx, fit.model), control=control)
        passed = trainer.n_samples * ctx.spec.versions * (ctx.params.option == "I")
        return Local(own, update, fit.model, fit.trained, n_passed=passed)


ALGORITHM = Algorithm(
    name="scaffold",
    paper="Karimireddy et al.: SCAFFOLD: Stochastic Controlled Averaging for Federated Learning. ICML 2020",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    broadcast=Controlled,
    update=Change,
    cloud_state=Federation,
    edge_state=Relay,
    device_state=Own,
    adds_delta=True,
    on_refusal="revert",
    needs={"client": "device", "optimizer": "sgd"},
    asynchronous="unweighted",
    own_objective=lambda params: params.option == "I",
    footprint=Footprint(sends=sends, passes=lambda params: Passes(extra_per_sample=float(params.option == "I"))),
)
