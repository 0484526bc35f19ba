"""FedDC.

L. Gao, H. Fu, L. Li, Y. Chen, M. Xu, C.-Z. Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling
and Correction. CVPR 2022, algorithm 1; its objective is equation (4) with the terms R and G.

    F_i(t)  = L_i(t) + R + G            t: the local model, which starts from the global model w
    R       = alpha/2 |h_i + t - w|^2   pulls t towards w - h_i
    G       = <t, g_i - g> / (eta K)    corrects the gradients by the mean update direction
    g_i    <- t_i+ - w                  the last local update; g: mean of all clients' g_i
    h_i    <- h_i + g_i                 the local drift, initially 0; h: mean of all clients' h_i
    w      <- mean of t_i+ + h          all means weight a client by its samples |D_i|

Devices keep h_i and g_i, the cloud keeps h and g. A client whose update was not used restores its previous h_i and g_i,
so that h and g stay the means over all clients. `drift: false` keeps all h_i at 0, `gradient: false` leaves G out. With
both it is FedProx with mu = alpha, and with alpha = 0 as well it is FedAvg, bit for bit.

Deviations and readings:

- The mean of t_i+ is over participating clients, h and g are means over all clients, as in the authors' code. Means
  over participants only would diverge when these change from round to round. Weights by |D_i| are the paper's; the code
  takes plain means.
- A client sends t_i+ - w, which is also the change of its h_i, and its share of the change of g. The cloud sends w and
  g.
- g_i is stored and sent per unit step, as g_i / (eta K) with the K of that training, since clients may take different
  numbers of steps; the paper's take equally many. With momentum, `momentum_step_factor` takes the place of K. The
  authors' code accumulates g_i - g, as SCAFFOLD's option II does.
- In the authors' code a client divides alpha and g by its samples relative to the mean over clients
  (`relative_weights`), and clips the norm of all its gradients, those of R and G included, to 10 (`clip_norm`).
- The paper tunes alpha for each data set; the default is that of its code's CIFAR-10 runs, which also use weight decay.
- Drift and corrections concern parameters only; buffers follow `buffers`. With `edge_rounds` above 1 an edge averages
  the t_i+ of each edge round, all of them with the cloud's g, and sends the total change of h and g.
- A client must weigh the same in each round, or h and g would not stay the means. Specs in which samples arrive or are
  divided anew, and those in which late updates weigh less, are rejected.
- A client that has lost its state starts with h_i = g_i = 0 again, while h and g still contain its previous values.
  From then on they are not exactly the means, and training converges to a slightly different point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

from shared.algorithms.fedprox import Pull, pull_towards
from shared.algorithms.scaffold import plus
from shared.federation.hooks import (
    Advance,
    Algorithm,
    Begin,
    Broadcast,
    CloudHooks,
    Context,
    Correct,
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
    """Parameters of the objective.

    Attributes:
        alpha: weight of the penalty R.
        drift: whether the drifts h_i are learned.
        gradient: whether the objective contains G.
        relative_weights: whether a client divides alpha and g by its samples in units of the mean over clients.
        clip_norm: bound on the norm of a step's gradients, all parameters together, before weight decay; None: none.
    """

    alpha: Annotated[float, Field(ge=0, le=1e3)] = 0.01
    drift: bool = True
    gradient: bool = True
    relative_weights: bool = False
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] | None = None


class Steered(Broadcast):
    """Down: w (`model`) and g (`moved`); g is empty before the first aggregation."""

    moved: ModelState = Field(default_factory=dict)


class Corrected(Record):
    """Up: t_i+ - w, and the change of g; from an edge that forms a model also the change of h."""

    delta: Annotated[ModelState, Mean(weight="samples")]
    moved: Annotated[ModelState, Mean(weight="one")] = Field(default_factory=dict)
    drift: Annotated[ModelState, Mean(weight="one")] = Field(default_factory=dict)


class Federation(GlobalModel):
    """The cloud's state: w, h and g."""

    drift: ModelState = Field(default_factory=dict)
    moved: ModelState = Field(default_factory=dict)


class Changes(Record):
    """By how much visits changed h and g."""

    drift: ModelState = Field(default_factory=dict)
    moved: ModelState = Field(default_factory=dict)


class Relay(EdgeModel):
    """An edge's state within a round.

    Attributes:
        moved: g.
        before, changed: by how much its devices changed h and g, before the present edge round and in total.
    """

    moved: ModelState = Field(default_factory=dict)
    before: Changes = Changes()
    changed: Changes = Changes()


class Own(OwnBuffers):
    """A device's state: h_i (`drift`) and g_i (`moved`); empty while they are 0."""

    drift: ModelState = Field(default_factory=dict)
    moved: ModelState = Field(default_factory=dict)


def changes(ctx: Context[Params], update: Corrected, before: Federation | Changes) -> tuple[TensorMap, TensorMap]:
    """Returns h and g of `before` plus the changes that the visits behind a mean update made."""
    drift = before.drift
    if ctx.params.drift and update.drift:
        drift = plus(drift, update.drift, ctx.n_updates)
    elif ctx.params.drift:
        drift = plus(drift, only(update.delta, ctx.model.trainable_names), ctx.n_samples / ctx.total_samples)
    return drift, plus(before.moved, update.moved, ctx.n_updates)


def sends(ctx: Context[Params], model: TensorMap) -> Mapping[str, frozenset[str]]:
    """The change of g has all trainable parameters; so has that of h, which only edges send."""
    parameters = frozenset(ctx.model.trainable_names)
    found = {"delta": uploaded_names(ctx, model), "moved": parameters, "drift": parameters}
    there = {"delta": True, "moved": ctx.params.gradient, "drift": ctx.params.drift and ctx.seat is None}
    return {field: names for field, names in found.items() if there[field]}


class Cloud(CloudHooks[Federation, Steered, Corrected]):
    """The new global model is the mean of the models plus the mean of the drifts."""

    def init(self, ctx: Context[Params], model: TensorMap) -> Federation:
        return Federation(model=model)

    def broadcast(self, ctx: Context[Params], state: Federation, edge: int, seats: Sequence[Seat]) -> Steered:
        return Steered(model=state.model, moved=state.moved)

    def aggregate(self, ctx: Context[Params], state: Federation, update: Corrected) -> Federation:
        drift, moved = changes(ctx, update, state)
        return Federation(model=add(add(state.model, update.delta), drift), drift=drift, moved=moved)


class Edge(EdgeHooks[Relay, Steered, Corrected]):
    """Forwards g; if it forms a model, it adds up its devices' changes of h and g."""

    def init(self, ctx: Context[Params]) -> Relay:
        return Relay()

    def begin(self, ctx: Context[Params], state: Relay, broadcast: Steered) -> Begin[Relay]:
        return super().begin(ctx, Relay(moved=broadcast.moved), broadcast)

    def forms_model(self, ctx: Context[Params]) -> bool:
        return self.spec_forms_model(ctx)

    def dispatch(self, ctx: Context[Params], state: Relay, seat: Seat) -> Steered:
        return Steered(model=state.start, moved=state.moved)

    def aggregate(self, ctx: Context[Params], state: Relay, update: Corrected) -> Relay:
        drift, moved = changes(ctx, update, state.before)
        return super().aggregate(ctx, state, update).replace(changed=Changes(drift=drift, moved=moved))

    def advance(
        self, ctx: Context[Params], state: Relay, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Nothing]]
    ) -> Advance[Relay]:
        return super().advance(ctx, state.replace(before=state.changed), tasks, outcomes)

    def finish(self, ctx: Context[Params], state: Relay) -> Finish[Relay, Corrected]:
        if not self.forms_model(ctx):
            return Finish(Relay())
        delta = delta_of(ctx, state.model, state.received)
        return Finish(Relay(), Corrected(delta=delta, moved=state.changed.moved, drift=state.changed.drift))


class Device(DeviceHooks[Own, Steered, Corrected]):
    """Trains on F_i and updates its drift."""

    def init(self, ctx: Context[Params]) -> Own:
        return Own()

    def training(self, ctx: Context[Params], state: Own, message: Steered) -> Training:
        start, bound = starting_model(state, message), ctx.params.clip_norm
        correct = steer(ctx, state, message.moved, start)
        return Training(start, correct if bound is None else Clip(bound, correct))

    def learned(
        self, ctx: Context[Params], state: Own, message: Steered, training: Training, fit: Fit, trainer: Trainer
    ) -> Local[Own, Corrected]:
        start = training.start
        gone = subtract(only(fit.model, ctx.model.trainable_names), start)  # g_i
        length = ctx.lr * momentum_step_factor(fit.trained.n_steps, ctx.spec.momentum)
        moved = plus({}, gone, 1 / length if length else 1.0) if ctx.params.gradient else {}
        drift = plus(gone, state.drift) if ctx.params.drift else {}  # h_i
        own = Own(buffers=own_buffers(ctx, fit.model), drift=drift, moved=moved)
        change = plus({}, plus(moved, state.moved, -1.0), trainer.n_samples / ctx.total_samples)
        return Local(own, Corrected(delta=delta_of(ctx, fit.model, start), moved=change), fit.model, fit.trained)


@dataclass(frozen=True)
class Steer:
    """Adds the gradients of R, with its weight alpha, and of G."""

    alpha: float

    def __call__(
        self, parameters: list[Tensor], gradients: list[Tensor], anchors: list[Tensor], shifts: list[Tensor]
    ) -> None:
        if self.alpha:
            Pull(self.alpha)(parameters, gradients, anchors)  # gradient of R
        torch._foreach_add_(gradients, shifts)  # gradient of G


def steer_each(
    parameters: list[Tensor],
    gradients: list[Tensor],
    anchors: list[Tensor],
    shifts: list[Tensor],
    alphas: list[Tensor],
) -> None:
    """Adds the gradients of R and G; alpha is the client's own."""
    for weight, gradient, anchor, alpha in zip(parameters, gradients, anchors, alphas, strict=True):
        gradient.addcmul_(weight - anchor, alpha)
    torch._foreach_add_(gradients, shifts)


@dataclass(frozen=True)
class Clip:
    """Corrects the gradients, then scales them down, all together, to a norm of at most `bound`."""

    bound: float
    correct: Correct | None

    def __call__(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if self.correct is not None:
            self.correct(parameters, gradients)
        norms = torch.stack(torch._foreach_norm(gradients)).sort().values  # so that the layers' order changes no bit
        norm = torch.linalg.vector_norm(norms)
        torch._foreach_mul_(gradients, (self.bound / norm).clamp(max=1.0))


def steer(ctx: Context[Params], state: Own, moved: TensorMap, start: TensorMap) -> Elementwise | None:
    """Returns the correction that adds the gradients of R and G; None if both are zero."""
    names = ctx.model.trainable_names
    anchor = add(start, {name: -tensor for name, tensor in state.drift.items()})  # w - h_i
    if ctx.params.relative_weights:
        relative = max(ctx.n_samples, 1) * ctx.total_clients / ctx.total_samples
        zeros = {name: torch.zeros_like(start[name]) for name in names}
        g = plus(zeros, moved, 1 / relative)
        shifts = [state.moved.get(name, zeros[name]) - g[name] for name in names]  # g_i - g
        alphas = [torch.full_like(start[name], ctx.params.alpha / relative) for name in names]
        return Elementwise(steer_each, ([anchor[name] for name in names], shifts, alphas))
    if not state.moved and not moved:
        return pull_towards(anchor, names, ctx.params.alpha) if ctx.params.alpha else None
    zero = torch.zeros(())
    shifts = [state.moved.get(name, zero) - moved.get(name, zero) for name in names]  # g_i - g
    return Elementwise(Steer(ctx.params.alpha), ([anchor[name] for name in names], shifts))


ALGORITHM = Algorithm(
    name="feddc",
    paper="Gao et al.: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and Correction. "
    "CVPR 2022",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    broadcast=Steered,
    update=Corrected,
    cloud_state=Federation,
    edge_state=Relay,
    device_state=Own,
    on_refusal="revert",
    needs={
        "client": "device",
        "optimizer": "sgd",
        "schedule": "own_data",
        "arrival_rate": None,
        "late": "drop",
        "weights": "samples",  # by which drifts are weighted too
    },
    one_by_one=lambda params: params.clip_norm and "clip_norm takes the norm of one device's gradients at a time",
    footprint=Footprint(sends=sends),
)
