"""T-FedAvg.

J. Xu, W. Du, Y. Jin, W. He, R. Cheng: Ternary Compression for Communication-Efficient Federated Learning. IEEE
Transactions on Neural Networks and Learning Systems, 2020, algorithm 1 (FTTQ, a client) and algorithm 2 (T-FedAvg).

    theta       latent weights of a layer, in full precision; w: its quantization factor; both are trained
    Delta       T mean |theta|                                                                  threshold
    I           sign(theta) where |theta| > Delta, else 0
    W           w I, with which the client computes                                             algorithm 1
    dJ/dw       sum of I dJ/dW; the step takes its mean over I
    dJ/dtheta   w dJ/dW where I is not 0, else dJ/dW

In a round clients start from the model received, train by FTTQ, and send I and w. The server averages w I by samples,
makes the mean ternary again and broadcasts it. In both directions 2 bits a weight and 4 bytes a layer are sent.
`quantise: false` is FedAvg, bit for bit.

Constants: T = 0.7 at clients is that of Ternary Weight Networks (Li, Zhang, Liu, arXiv 1605.04711), and w starts as
their best one, the mean of |theta| above Delta. At the server the threshold is 0.05 of the largest magnitude, as in
Trained Ternary Quantization (Zhu, Han, Mao, Dally, ICLR 2017).

The newest version of the authors' program has other thresholds: 0.07 at clients and 0.05 at the server times the sum
of a layer's magnitudes by its number of kernels, inputs times outputs (`threshold_of`, `server_threshold_of: kernel`).
That is the mean magnitude in a linear layer, and nine times the mean for kernels of 3 x 3. Its W has the best factor of
the present theta in each step (`factor: best`), while the w that it trains, from 1 on, only scales the gradient of
theta: `gradient: straight_through` is nearest to that. Where its option `ada_thresh` is off, Delta is a share of 0.055
to 0.06, drawn anew each time, of the largest magnitude (`threshold_of: max`), and W has the trained w.

Deviations and readings (written from the abstract, citations and the behaviour of the authors' published program; the
paper's text was not available, so its equation numbers and its own thresholds could not be checked):

- Ternary are trainable tensors of two or more dimensions, in all layers; the program's networks keep their first and
  last layer in full precision. Biases and batch-norm are sent in full, as in FedAvg.
- The factor w in dJ/dtheta is that of Trained Ternary Quantization and of the authors' program. There the w in this
  gradient starts as 1; here it starts as the best one, far below 1, and so needs a larger learning rate.
  `gradient: straight_through` leaves the factor out.
- The authors' server compares the ternary model with the mean on test data, and broadcasts the mean in full if their
  accuracies differ by 3 % or more (strategy II). A cloud here does not evaluate before it broadcasts: `download: full`
  always broadcasts the mean, `ternary` never.
- The step of w follows the mean over the positions of I instead of their sum: the sum grows with the number of
  positions, and with the learning rate of the other weights w diverges.
- theta starts from the weights received, since a client gets nothing else.
- The server's model is the one that it sends: this model is tested, downloaded and trained from.
- With several edge rounds an edge makes its model ternary as the server does; it sends its mean to the cloud in full.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field

from shared.federation.hooks import (
    Advance,
    Algorithm,
    Begin,
    Broadcast,
    CloudHooks,
    Codec,
    Context,
    DeviceHooks,
    Direction,
    EdgeHooks,
    EdgeModel,
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
    Sgd,
    Task,
    Tensor,
    TensorMap,
    Trainer,
    Update,
    delta_of,
    only,
    overlay,
    own_buffers,
    starting_model,
    uploaded_names,
    without,
)
from shared.wire.compression import Ternary, mean_magnitude, ternary_of

Unit = Literal["mean", "max", "kernel"]


class Params(Record):
    """Whether weights are made ternary, and with which thresholds.

    Attributes:
        quantise: whether weights are made ternary; false is FedAvg.
        threshold: T, the clients' threshold in units of `threshold_of`.
        server_threshold: threshold of the server, and of edges that form a model, in units of `server_threshold_of`.
        threshold_of, server_threshold_of: of a layer's magnitudes the `mean`, the largest (`max`), or the sum by the
            number of kernels, inputs times outputs (`kernel`).
        factor: whether w is `trained` from the best one on, or the `best` one of the present theta in each step.
        gradient: whether the gradient of theta is that of W `scaled` by w where W is not 0, or `straight_through`.
        download: whether the server's model is made `ternary` again or sent in `full`.
    """

    quantise: bool = True
    threshold: Annotated[float, Field(ge=0, le=10)] = 0.7
    server_threshold: Annotated[float, Field(ge=0, lt=1)] = 0.05
    threshold_of: Unit = "mean"
    server_threshold_of: Unit = "max"
    factor: Literal["trained", "best"] = "trained"
    gradient: Literal["scaled", "straight_through"] = "scaled"
    download: Literal["ternary", "full"] = "ternary"


class Ternaries(Update):
    """Up: trained minus received of the other tensors (`delta`), and the ternary weights themselves."""

    weights: Annotated[ModelState, Mean(weight="samples")] = Field(default_factory=dict)


def ternary_names(ctx: Context[Params], model: Mapping[str, Tensor]) -> list[str]:
    """Returns the names of the tensors that are made ternary."""
    if not ctx.params.quantise:
        return []
    return [name for name in ctx.model.trainable_in(model) if model[name].dim() >= 2]


def pattern(theta: Tensor, least: float) -> Tensor:
    """Returns I: the signs of the entries with magnitudes above `least`, 0 elsewhere."""
    return theta.sign() * (theta.abs() > least)


def threshold(theta: Tensor, share: float, of: Unit) -> float:
    """Returns Delta of weights (outputs, inputs, ...): a share of the magnitude that `of` names, see `Params`."""
    if of == "max":
        return share * (float(theta.abs().max()) if theta.numel() else 0.0)
    return share * mean_magnitude(theta) * (theta[0, 0].numel() if of == "kernel" and theta.numel() else 1)


def best_factor(theta: Tensor, signs: Tensor) -> Tensor:
    """Returns the factor w for which w I is nearest to theta."""
    return torch.tensor(mean_magnitude(theta[signs != 0]), dtype=torch.float32).to(theta.device)


def as_ternary(ctx: Context[Params], model: TensorMap) -> TensorMap:
    """Returns a model as the server sends it, its weights ternary; weights that are ternary already do not change."""
    found = dict(model)
    if ctx.params.download == "full":
        return found
    for name in ternary_names(ctx, model):
        theta = model[name].detach().contiguous()
        least = threshold(theta, ctx.params.server_threshold, ctx.params.server_threshold_of)
        signs = pattern(theta, 0.0 if is_ternary(theta) else least)
        found[name] = ternary_of(signs, best_factor(theta, signs), theta.shape)
    return found


def is_ternary(theta: Tensor) -> bool:
    """Returns whether all weights that are not 0 have one magnitude: no threshold may then take any of them."""
    magnitudes = theta.abs()
    return bool(((magnitudes == 0) | (magnitudes == magnitudes.max())).all()) if theta.numel() else True


class Fttq:
    """The state of one training by algorithm 1; `step` is its optimiser."""

    def __init__(self, ctx: Context[Params], start: TensorMap) -> None:
        """Starts from the weights received; a layer's w starts as the best one."""
        self.params, self.scaled = ctx.params, ctx.params.gradient == "scaled"
        wanted = set(ternary_names(ctx, start))
        self.at = {number: name for number, name in enumerate(ctx.model.trainable_in(start)) if name in wanted}
        self.theta = {name: start[name].detach().clone() for name in self.at.values()}
        self.signs = {name: self._signs(name) for name in self.theta}
        self.w = {name: best_factor(theta, self.signs[name]) for name, theta in self.theta.items()}
        self.sgd = Sgd(ctx.lr, ctx.spec.momentum, ctx.spec.weight_decay)

    def _signs(self, name: str) -> Tensor:
        theta = self.theta[name]
        return pattern(theta, threshold(theta, self.params.threshold, self.params.threshold_of))

    @property
    def weights(self) -> TensorMap:
        """W of each layer, in full precision."""
        return {name: self.w[name] * signs for name, signs in self.signs.items()}

    @property
    def ternary(self) -> TensorMap:
        """W of each layer, in ternary form."""
        signs = {name: (self.signs[name] * w.sign()).cpu() for name, w in self.w.items()}
        return {name: ternary_of(signs[name], w.abs().cpu(), self.theta[name].shape) for name, w in self.w.items()}

    def step(self, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Takes an SGD step of theta, w and all other parameters, then recomputes W."""
        trained, slopes = list(parameters), list(gradients)
        for number, name in self.at.items():
            signs, w, slope = self.signs[name], self.w[name], gradients[number]
            trained[number] = self.theta[name]
            if self.scaled:
                slopes[number] = torch.where(signs != 0, w * slope, slope)
            if self.params.factor == "trained":
                trained.append(w)
                slopes.append((signs * slope).sum() / signs.count_nonzero().clamp(min=1))  # dJ/dw
        self.sgd(trained, slopes)
        for number, name in self.at.items():
            self.signs[name] = self._signs(name)
            if self.params.factor == "best":
                self.w[name] = best_factor(self.theta[name], self.signs[name])
            parameters[number].copy_(self.w[name] * self.signs[name])


def codes(ctx: Context[Params], model: TensorMap, way: Direction) -> Mapping[str, Codec]:
    """Ternary weights are sent in the ternary codec; not down, if the server's model is sent in full."""
    full = way == "down" and ctx.params.download == "full"
    return {} if full else dict.fromkeys(ternary_names(ctx, model), Ternary())


def sends(ctx: Context[Params], model: TensorMap) -> Mapping[str, frozenset[str]]:
    """Ternary weights are sent themselves, other tensors as differences."""
    names = frozenset(ternary_names(ctx, model))
    return {"delta": uploaded_names(ctx, model) - names, "weights": names}


class Cloud(CloudHooks[GlobalModel, Broadcast, Ternaries]):
    """Averages ternary weights, and makes the mean ternary again (algorithm 2)."""

    def init(self, ctx: Context[Params], model: TensorMap) -> GlobalModel:
        return super().init(ctx, _plain(as_ternary(ctx, model)))

    def broadcast(self, ctx: Context[Params], state: GlobalModel, edge: int, seats: Sequence[Seat]) -> Broadcast:
        return Broadcast(model=as_ternary(ctx, state.model))

    def aggregate(self, ctx: Context[Params], state: GlobalModel, update: Ternaries) -> GlobalModel:
        mean = overlay(super().aggregate(ctx, state, update).model, update.weights)
        return state.replace(model=_plain(as_ternary(ctx, mean)))


class Edge(EdgeHooks[EdgeModel, Broadcast, Ternaries]):
    """Forwards the ternary model; if it forms a model, it makes that ternary."""

    def forms_model(self, ctx: Context[Params]) -> bool:
        return self.spec_forms_model(ctx)

    def begin(self, ctx: Context[Params], state: EdgeModel, broadcast: Broadcast) -> Begin:
        return super().begin(ctx, state, Broadcast(model=as_ternary(ctx, broadcast.model)))

    def aggregate(self, ctx: Context[Params], state: EdgeModel, update: Ternaries) -> EdgeModel:
        after = super().aggregate(ctx, state, update)
        return after.replace(model=overlay(after.model, update.weights))

    def advance(
        self, ctx: Context[Params], state: EdgeModel, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Nothing]]
    ) -> Advance:
        return Advance(state.replace(start=as_ternary(ctx, state.model)))

    def finish(self, ctx: Context[Params], state: EdgeModel) -> Finish[EdgeModel, Ternaries]:
        if not self.forms_model(ctx):
            return super().finish(ctx, state)
        names = ternary_names(ctx, state.model)
        delta = without(delta_of(ctx, state.model, state.received), names)
        done = state.replace(start={}, received={}, model={})
        return Finish(done, Ternaries(delta=delta, weights=_plain(only(state.model, names))))


class Device(DeviceHooks[OwnBuffers, Broadcast, Ternaries]):
    """Trains ternary weights (algorithm 1)."""

    def local_update(
        self, ctx: Context[Params], state: OwnBuffers, message: Broadcast, trainer: Trainer
    ) -> Local[OwnBuffers, Ternaries]:
        start = starting_model(state, message)
        names = ternary_names(ctx, start)
        if not names:
            fit = trainer.fit(ctx, start)
            return _local(ctx, fit, Ternaries(delta=delta_of(ctx, fit.model, start)))
        fttq = Fttq(ctx, start)
        fit = trainer.fit(ctx, start | fttq.weights, step=fttq.step)
        delta = without(delta_of(ctx, fit.model, start), names)
        return _local(ctx, fit, Ternaries(delta=delta, weights=fttq.ternary))


def _local(ctx: Context[Params], fit: Fit, update: Ternaries) -> Local[OwnBuffers, Ternaries]:
    """Returns what a visit leaves behind that trained this model and sends this update."""
    return Local(OwnBuffers(buffers=own_buffers(ctx, fit.model)), update, fit.model, fit.trained)


def _plain(model: TensorMap) -> TensorMap:
    """Returns a model as it is stored: with weights in full precision instead of ternary form."""
    return {name: tensor.detach() for name, tensor in model.items()}


ALGORITHM = Algorithm(
    name="t_fedavg",
    paper="Xu et al.: Ternary Compression for Communication-Efficient Federated Learning. IEEE TNNLS 2020",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    update=Ternaries,
    needs={"optimizer": "sgd"},
    dtypes="float32",
    sends_models=True,
    footprint=Footprint(sends=sends, codes=codes),
)
