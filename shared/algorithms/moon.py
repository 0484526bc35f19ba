"""MOON.

Q. Li, B. He, D. Song: Model-Contrastive Federated Learning. CVPR 2021, algorithm 1, equations 3 and 4.

    z, z_glob, z_prev   representation of x by the model in training, the model received, and the client's previous one
    l_con = -log(exp(sim(z, z_glob)/T) / (exp(sim(z, z_glob)/T) + exp(sim(z, z_prev)/T)))               (3)
    l     = l_sup(w; x, y) + mu * l_con(w; w_prev, w_t; x)                                               (4)

sim is the cosine similarity. The client's previous model is kept in the device's state; messages are FedAvg's. mu = 0
is FedAvg, bit for bit.

Deviations and readings:

- The representation is the input of the model's last linear layer; whether there is a projection head is up to the
  model.
- In a client's first visit there is no previous model, and l_con is left out. So does the authors' code in round 1. In
  a later round it takes random initial weights of the client's own as its previous model.
- The two models with which z is compared are in evaluation mode: batch-norm uses their running statistics and does not
  update them.
- The paper tries mu 0.1, 1, 5 and 10 and T 0.1, 0.5 and 1, and uses T 0.5; mu 1 is the default of the authors' code.
"""

from __future__ import annotations

import copy
from typing import Annotated

import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    Context,
    DeviceHooks,
    Footprint,
    Local,
    ModelState,
    Operations,
    OwnBuffers,
    Record,
    Tensor,
    TensorMap,
    Trainer,
    Update,
    delta_of,
    operations,
    own_buffers,
    starting_model,
)
from shared.training.models import Classifier, check_features, features_of, write_state


class Params(Record):
    """mu: weight of the contrastive loss; temperature: T, by which similarities are divided."""

    mu: Annotated[float, Field(ge=0, le=1e3)] = 1.0
    temperature: Annotated[float, Field(gt=0, le=1e3)] = 0.5


class Own(OwnBuffers):
    """A device's state: the model that it trained in its last visit."""

    own: ModelState = Field(default_factory=dict)


def contrastive(z: Tensor, z_glob: Tensor, z_prev: Tensor, temperature: float) -> Tensor:
    """Returns l_con, averaged over the batch, of representations (batch, d)."""
    sims = torch.stack([cosine_similarity(z, z_glob), cosine_similarity(z, z_prev)], 1)  # (batch, 2)
    return cross_entropy(sims / temperature, torch.zeros(len(z), dtype=torch.int64, device=z.device))  # (3)


class Contrast:
    """Objective (4) of one visit; its two frozen models are copied from the one in training in the first step."""

    def __init__(self, received: TensorMap, last: TensorMap, ctx: Context[Params]) -> None:
        self.states, self.params, self.target = (received, last), ctx.params, ctx.model.target
        self.frozen: list[Classifier] = []

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss of a batch, and its outputs."""
        mine = features_of(model, "moon")
        if not self.frozen:
            self.frozen = [_frozen(mine, state) for state in self.states]
        z: Tensor = mine.features(x)
        outputs: Tensor = mine.head(z)
        with torch.no_grad():
            z_glob, z_prev = (other.features(x) for other in self.frozen)
        pulled = contrastive(z, z_glob, z_prev, self.params.temperature)
        return self.target.loss(outputs, y) + self.params.mu * pulled, outputs  # (4)


def _frozen(model: Classifier, state: TensorMap) -> Classifier:
    """Returns a copy of a model with another state, in evaluation mode and without gradients."""
    other = copy.deepcopy(model).requires_grad_(False).eval()
    write_state(other, state)
    return other


def mean_operations(params: Params, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Returns the operations of a step on (4); a first visit, without a previous model, is counted the same."""
    check_features(model, x, "moon")
    own = operations(lambda: model(x).sum())
    with Operations() as forward, torch.no_grad():
        features_of(model, "moon").features(x)
    return own + (2 * forward.n if params.mu else 0)


class Device(DeviceHooks[Own]):
    """Local SGD on (4)."""

    def init(self, ctx: Context[Params]) -> Own:
        return Own()

    def local_update(self, ctx: Context[Params], state: Own, message: Broadcast, trainer: Trainer) -> Local[Own]:
        start = starting_model(state, message)
        contrast = Contrast(start, state.own, ctx) if ctx.params.mu and state.own else None
        fit = trainer.fit(ctx, start, objective=contrast)
        own = Own(buffers=own_buffers(ctx, fit.model), own=fit.model if ctx.params.mu else {})
        return Local(own, Update(delta=delta_of(ctx, fit.model, start)), fit.model, fit.trained)


ALGORITHM = Algorithm(
    name="moon",
    paper="Li et al.: Model-Contrastive Federated Learning. CVPR 2021",
    params=Params,
    device=Device(),
    device_state=Own,
    needs={"client": "device"},
    targets=("classes", "numbers"),
    own_objective=lambda params: params.mu > 0,
    footprint=Footprint(flops=mean_operations),
)
