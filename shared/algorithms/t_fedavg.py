"""T-FedAvg.

J. Xu, W. Du, Y. Jin, W. He, R. Cheng: Ternary Compression for Communication-Efficient Federated Learning. IEEE
Transactions on Neural Networks and Learning Systems, 2020, algorithm 1 (FTTQ, a client) and algorithm 2 (T-FedAvg).

    theta       latent weights of a layer, full precision; w: its quantization factor; both are trained
    Delta       T mean |theta|                                                                  threshold
    I           sign(theta) where |theta| > Delta, else 0
    W           w I, with which the client computes                                             algorithm 1
    dJ/dw       sum of I dJ/dW; the step takes its mean over I
    dJ/dtheta   w dJ/dW where I is not 0, else dJ/dW

A round: clients begin from the model received, train by FTTQ, send I and w; the server averages w I by samples, makes
the mean ternary again and broadcasts that. Both ways 2 bits a weight and 4 bytes a layer. `quantise: false` is FedAvg,
bit for bit.

Where values come from: T = 0.7 at clients is that of Ternary Weight Networks (Li, Zhang, Liu, arXiv 1605.04711),
and w begins as their best one, the mean of |theta| beyond Delta. 0.05 at the server, there of the largest magnitude, is
that of Trained Ternary Quantization (Zhu, Han, Mao, Dally, ICLR 2017).

Deviations and readings (written from abstract, citations and what the authors' published program does; the paper's
text was not at hand, so that its equation numbers and its own thresholds could not be checked):

- Weights are the tensors of two or more dimensions, in all layers; biases and batch-norm travel in full, as in FedAvg.
- The factor w in dJ/dtheta is that of Trained Ternary Quantization, and of the authors' program, in which w of the
  gradient begins as 1. Here it begins as the best one, far below, so that it wants a larger learning rate;
  `gradient: straight_through` leaves it out.
- The authors' server compares the ternary model with the mean on test data, and broadcasts the mean in full where the
  ternary one is worse by 3 % (strategy II). A cloud here does not evaluate before it broadcasts: `download: full` does
  so always, `ternary` never.
- The step of w goes along the mean over the positions of I, not their sum: that is as many times as long as there are
  positions, and at the learning rate of the other weights w runs away.
- theta begins from the weights received (they are all that a client has).
- The server's model is what it sends: that is tested, downloaded and trained from.
- With several edge rounds an edge makes its model ternary as the server does; to the cloud its mean travels in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from pydantic import Field

from shared.federation.hooks import (
    Advance,
    Algorithm,
    Begin,
    Broadcast,
    CloudHooks,
    CodecSpec,
    Context,
    DeviceHooks,
    Direction,
    EdgeHooks,
    Finish,
    Footprint,
    Local,
    Mean,
    ModelState,
    Record,
    Seat,
    Sgd,
    Tensor,
    TensorMap,
    Trainer,
    Update,
    default_local,
    delta_of,
    only,
    overlay,
    starting_model,
    travelling,
    without,
)
from shared.wire.compression import Ternary, mean_magnitude, ternary_of


class Params(Record):
    """Whether anything is made ternary, and by which thresholds.

    Attributes:
        quantise: false is FedAvg.
        threshold: T of the clients, times the mean magnitude.
        server_threshold: of the server (and of edges that form a model), times the largest magnitude.
        gradient: of theta: that of W, times w where W is not 0, or as it is.
        download: the server's model, `ternary` again or in `full`.
    """

    quantise: bool = True
    threshold: Annotated[float, Field(ge=0, le=10)] = 0.7
    server_threshold: Annotated[float, Field(ge=0, lt=1)] = 0.05
    gradient: Literal["scaled", "straight_through"] = "scaled"
    download: Literal["ternary", "full"] = "ternary"


class Ternaries(Update):
    """Up: `delta` of what is not ternary, and the ternary weights themselves."""

    weights: Annotated[ModelState, Mean(weight="samples")] = Field(default_factory=dict)


def ternary_names(ctx: Context, model: Mapping[str, Tensor]) -> list[str]:
    """Which of a model's tensors are made ternary."""
    if not ctx.params.quantise:
        return []
    return [name for name, tensor in model.items() if name not in ctx.model.buffer_names and tensor.dim() >= 2]


def pattern(theta: Tensor, least: float) -> Tensor:
    """I: the signs of what is beyond `least`."""
    return theta.sign() * (theta.abs() > least)


def best_factor(theta: Tensor, signs: Tensor) -> Tensor:
    """w: of all factors that for which w I is nearest to theta."""
    return torch.tensor(mean_magnitude(theta[signs != 0]), dtype=torch.float32).to(theta.device)


def as_ternary(ctx: Context, model: TensorMap) -> TensorMap:
    """A model as the server sends it: its weights in ternary form; what is ternary already stays the same."""
    found = dict(model)
    if ctx.params.download == "full":
        return found
    for name in ternary_names(ctx, model):
        theta = model[name].detach().contiguous()
        most = float(theta.abs().max()) if theta.numel() else 0.0
        signs = pattern(theta, ctx.params.server_threshold * most)
        found[name] = ternary_of(signs, best_factor(theta, signs), theta.shape)
    return found


class Fttq:
    """The state of one training by algorithm 1, and its step."""

    def __init__(self, ctx: Context, start: TensorMap) -> None:
        """From the weights received; a layer's w begins as the best one."""
        self.threshold, self.scaled = ctx.params.threshold, ctx.params.gradient == "scaled"
        wanted = set(ternary_names(ctx, start))
        parameters = [name for name in start if name not in ctx.model.buffer_names]
        self.at = {number: name for number, name in enumerate(parameters) if name in wanted}
        self.theta = {name: start[name].detach().clone() for name in self.at.values()}
        self.signs = {name: self._signs(name) for name in self.theta}
        self.w = {name: best_factor(theta, self.signs[name]) for name, theta in self.theta.items()}
        self.sgd = Sgd(ctx.spec.lr, ctx.spec.momentum, ctx.spec.weight_decay)

    def _signs(self, name: str) -> Tensor:
        theta = self.theta[name]
        return pattern(theta, self.threshold * mean_magnitude(theta))

    @property
    def weights(self) -> TensorMap:
        """W of each layer, in full."""
        return {name: self.w[name] * signs for name, signs in self.signs.items()}

    @property
    def short(self) -> TensorMap:
        """W of each layer, in ternary form."""
        signs = {name: (self.signs[name] * w.sign()).cpu() for name, w in self.w.items()}
        return {name: ternary_of(signs[name], w.abs().cpu(), self.theta[name].shape) for name, w in self.w.items()}

    def step(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """SGD on theta, w and what is not ternary; then W anew."""
        trained, slopes = list(parameters), list(gradients)
        for number, name in self.at.items():
            signs, w, slope = self.signs[name], self.w[name], gradients[number]
            trained[number] = self.theta[name]
            if self.scaled:
                slopes[number] = torch.where(signs != 0, w * slope, slope)
            trained.append(w)
            slopes.append((signs * slope).sum() / signs.count_nonzero().clamp(min=1))  # dJ/dw
        self.sgd(trained, slopes)
        for number, name in self.at.items():
            self.signs[name] = self._signs(name)
            parameters[number].copy_(self.w[name] * self.signs[name])


def codes(ctx: Context, model: TensorMap, way: Direction) -> Mapping[str, CodecSpec]:
    """What is ternary travels so up, and down unless the server's model goes down in full."""
    full = way == "down" and ctx.params.download == "full"
    return {} if full else dict.fromkeys(ternary_names(ctx, model), Ternary())


def sends(ctx: Context, model: TensorMap) -> Mapping[str, frozenset[str]]:
    """What is ternary travels as it is, the rest as a difference."""
    names = frozenset(ternary_names(ctx, model))
    return {"delta": travelling(ctx, model) - names, "weights": names}


class Cloud(CloudHooks):
    """Averages ternary weights and makes the mean ternary again (algorithm 2)."""

    def init(self, ctx: Context, model: TensorMap) -> Any:
        return super().init(ctx, _plain(as_ternary(ctx, model)))

    def broadcast(self, ctx: Context, state: Any, edge: int, seats: Sequence[Seat]) -> Any:
        return Broadcast(model=as_ternary(ctx, state.model))

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        mean = overlay(super().aggregate(ctx, state, update).model, update.weights)
        return state.replace(model=_plain(as_ternary(ctx, mean)))


class Edge(EdgeHooks):
    """Hands the ternary model on; where it forms a model, it makes that ternary."""

    def forms_model(self, ctx: Context) -> bool:
        return self.spec_forms_model(ctx)

    def begin(self, ctx: Context, state: Any, broadcast: Any) -> Begin:
        return super().begin(ctx, state, Broadcast(model=as_ternary(ctx, broadcast.model)))

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        after = super().aggregate(ctx, state, update)
        return after.replace(model=overlay(after.model, update.weights))

    def advance(self, ctx: Context, state: Any, tasks: Any, outcomes: Any) -> Advance:
        return Advance(state.replace(start=as_ternary(ctx, state.model)))

    def finish(self, ctx: Context, state: Any) -> Finish:
        if not self.forms_model(ctx):
            return super().finish(ctx, state)
        names = ternary_names(ctx, state.model)
        delta = without(delta_of(ctx, state.model, state.received), names)
        done = state.replace(start={}, received={}, model={})
        return Finish(done, Ternaries(delta=delta, weights=_plain(only(state.model, names))))


class Device(DeviceHooks):
    """Trains ternary weights (algorithm 1)."""

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        start = starting_model(state, message)
        names = ternary_names(ctx, start)
        if not names:
            local: Any = default_local(ctx, start, trainer.fit(ctx, start))
            return Local(local.state, Ternaries(delta=local.update.delta), local.model, local.trained)
        fttq = Fttq(ctx, start)
        fit = trainer.fit(ctx, start | fttq.weights, step=fttq.step)
        local = default_local(ctx, start, fit)
        update = Ternaries(delta=without(local.update.delta, names), weights=fttq.short)
        return Local(local.state, update, fit.model, fit.trained)


def _plain(model: TensorMap) -> TensorMap:
    """A model that is kept: in full."""
    return {name: tensor.detach() for name, tensor in model.items()}


ALGORITHM = Algorithm(
    name="t_fedavg",
    paper="Xu et al.: Ternary Compression for Communication-Efficient Federated Learning. IEEE TNNLS 2020",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    update=Ternaries,
    footprint=Footprint(sends=sends, codes=codes),
)
