"""FedDC.

L. Gao, H. Fu, L. Li, Y. Chen, M. Xu, C.-Z. Xu: FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling
and Correction. CVPR 2022, algorithm 1; its objective is equation (4) with the terms R and G.

    F_i(t)  = L_i(t) + alpha/2 |h_i + t - w|^2 + <t, g_i - g> / (eta K)     t: the local model, begins at w
    g_i    <- t_i+ - w                  what the last local training moved; g: mean of all clients' g_i
    h_i    <- h_i + g_i                 the drift variable, begins at 0; h: mean of all clients' h_i
    w      <- mean of t_i+ + h          means weigh a client by |D_i|

h_i and g_i are in the device's state, h and g in the cloud's. A client whose update was not used keeps its old ones, so
that h and g stay the means of all. `drift: false` leaves all h_i at 0, `gradient: false` leaves G out: without both it
is FedProx with mu = alpha, and with alpha 0 besides FedAvg, bit for bit.

Deviations and readings:

- t_i+ are those of the clients that took part, h and g of all, as in the authors' code: means over those who took part
  diverge where these change from round to round. Weights by |D_i| are the paper's; the code's means are plain.
- A client sends t_i+ - w, which is also what its h_i changed, and by what the mean of the g_i changed; down travel w
  and g.
- g_i is kept and sent for a single step, as g_i / (eta K) with the K of that training; the paper's clients all take
  equally many. With momentum `reach` is in the place of K. The code adds up g_i - g too, as SCAFFOLD's option II does.
- alpha is tuned by data set in the paper; the default is that of the code's CIFAR-10 runs. These add weight decay.
- Only parameters drift; buffers follow `buffers`. With `edge_rounds` above 1 an edge averages the t_i+ of each of its
  edge rounds, with the cloud's g, and sends on by what all of them changed h and g.
- A client weighs the same in each round, else h and g would not stay the means: specs in which samples arrive or are
  dealt anew, or in which late updates weigh less, are refused.
- A client that has lost its state begins with h_i = g_i = 0 again, while h and g remember its old ones: they are off
  the means from then on, and training settles beside where it would have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import Field

from shared.algorithms.fedprox import pull_towards
from shared.algorithms.scaffold import plus
from shared.federation.hooks import (
    Advance,
    Algorithm,
    Begin,
    CloudHooks,
    Context,
    Correct,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Finish,
    Footprint,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    OwnBuffers,
    Record,
    Seat,
    Tensor,
    TensorMap,
    Trainer,
    add,
    default_local,
    delta_of,
    reach,
    starting_model,
    subtract,
    travelling,
    without,
)


class Params(Record):
    """alpha: weight of the drift's penalty R; drift, gradient: whether h_i is learned, and G is there."""

    alpha: Annotated[float, Field(ge=0, le=1e3)] = 0.01
    drift: bool = True
    gradient: bool = True


class Steered(Record):
    """Down: w and g; g is empty before there is one."""

    model: ModelState
    moved: ModelState = Field(default_factory=dict)


class Corrected(Record):
    """Up: t_i+ - w, and by what g changed; from an edge that forms a model also by what h did."""

    delta: Annotated[ModelState, Mean(weight="samples")]
    moved: Annotated[ModelState, Mean(weight="one")] = Field(default_factory=dict)
    drift: Annotated[ModelState, Mean(weight="one")] = Field(default_factory=dict)


class Federation(GlobalModel):
    """The cloud's state: w, h and g."""

    drift: ModelState = Field(default_factory=dict)
    moved: ModelState = Field(default_factory=dict)


class Changes(Record):
    """By what some visits changed h and g."""

    drift: ModelState = Field(default_factory=dict)
    moved: ModelState = Field(default_factory=dict)


class Relay(EdgeModel):
    """An edge's state within a round: g, and what its devices changed: before this edge round, and in all."""

    moved: ModelState = Field(default_factory=dict)
    before: Changes = Changes()
    changed: Changes = Changes()


class Own(OwnBuffers):
    """A device's state: h_i and g_i; empty while they are 0."""

    drift: ModelState = Field(default_factory=dict)
    moved: ModelState = Field(default_factory=dict)


def changes(ctx: Context, update: Any, before: Any) -> tuple[TensorMap, TensorMap]:
    """h and g, or what they have changed so far, with what the visits behind a mean update changed of them."""
    drift = before.drift
    if ctx.params.drift and update.drift:
        drift = plus(drift, update.drift, ctx.n_updates)
    elif ctx.params.drift:
        drift = plus(drift, without(update.delta, ctx.model.buffer_names), ctx.n_samples / ctx.total_samples)
    return drift, plus(before.moved, update.moved, ctx.n_updates)


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """Of g all parameters, from an edge also of h."""
    parameters = frozenset(model.keys() - ctx.model.buffer_names)
    found = {"delta": travelling(ctx, model), "moved": parameters, "drift": parameters}
    there = {"delta": True, "moved": ctx.params.gradient, "drift": ctx.params.drift and ctx.seat is None}
    return {field: names for field, names in found.items() if there[field]}


class Cloud(CloudHooks):
    """The mean of the models with the mean of all drifts is the new model."""

    def init(self, ctx: Context, model: TensorMap) -> Any:
        return Federation(model=model)

    def broadcast(self, ctx: Context, state: Any, edge: int, seats: Sequence[Seat]) -> Any:
        return Steered(model=state.model, moved=state.moved)

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        drift, moved = changes(ctx, update, state)
        return Federation(model=add(add(state.model, update.delta), drift), drift=drift, moved=moved)


class Edge(EdgeHooks):
    """Hands g on; where it forms a model, it adds up what its devices change of h and g."""

    def init(self, ctx: Context) -> Any:
        return Relay()

    def begin(self, ctx: Context, state: Any, broadcast: Any) -> Begin:
        return super().begin(ctx, Relay(moved=broadcast.moved), broadcast)

    def forms_model(self, ctx: Context) -> bool:
        return self.spec_forms_model(ctx)

    def dispatch(self, ctx: Context, state: Any, seat: Seat) -> Any:
        return Steered(model=state.start, moved=state.moved)

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        drift, moved = changes(ctx, update, state.before)
        return super().aggregate(ctx, state, update).replace(changed=Changes(drift=drift, moved=moved))

    def advance(self, ctx: Context, state: Any, tasks: Any, outcomes: Any) -> Advance:
        return super().advance(ctx, state.replace(before=state.changed), tasks, outcomes)

    def finish(self, ctx: Context, state: Any) -> Finish:
        if not self.forms_model(ctx):
            return Finish(Relay())
        delta = delta_of(ctx, state.model, state.received)
        return Finish(Relay(), Corrected(delta=delta, moved=state.changed.moved, drift=state.changed.drift))


class Device(DeviceHooks):
    """Trains on F_i, and learns its drift."""

    def init(self, ctx: Context) -> Any:
        return Own()

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        start = starting_model(state, message)
        fit = trainer.fit(ctx, start, correct=steer(ctx, state, message.moved, start))
        local: Any = default_local(ctx, start, fit)
        gone = subtract(without(fit.model, ctx.model.buffer_names), start)  # g_i
        length = ctx.spec.lr * reach(fit.trained.n_steps, ctx.spec.momentum)
        moved = plus({}, gone, 1 / length if length else 1.0) if ctx.params.gradient else {}
        drift = plus(gone, state.drift) if ctx.params.drift else {}  # h_i
        own = Own(buffers=local.state.buffers, drift=drift, moved=moved)
        change = plus({}, plus(moved, state.moved, -1.0), trainer.n_samples / ctx.total_samples)
        return Local(own, Corrected(delta=local.update.delta, moved=change), fit.model, fit.trained)


def steer(ctx: Context, state: Any, moved: TensorMap, start: TensorMap) -> Correct | None:
    """What R and G add to the gradients; None where that is nothing."""
    names = [name for name in start if name not in ctx.model.buffer_names]
    anchor = add(start, {name: -tensor for name, tensor in state.drift.items()})  # w - h_i
    pull = pull_towards(anchor, names, ctx.params.alpha) if ctx.params.alpha else None
    zero = torch.zeros(())
    shifts = [state.moved.get(name, zero) - moved.get(name, zero) for name in names]  # g_i - g
    if not state.moved and not moved:
        return pull

    def correct(parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if pull is not None:
            pull(parameters, gradients)  # gradient of R
        torch._foreach_add_(gradients, shifts)  # gradient of G

    return correct


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
    needs={"client": "device", "schedule": "own_data", "arrival_rate": None, "late": "drop"},
    footprint=Footprint(sends=sends),
)
