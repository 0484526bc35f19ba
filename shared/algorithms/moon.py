"""MOON.

Q. Li, B. He, D. Song: Model-Contrastive Federated Learning. CVPR 2021, algorithm 1, equations 3 and 4.

    z, z_glob, z_prev   representation of x by the model in training, by the one received, by the client's last one
    l_con = -log(exp(sim(z, z_glob)/T) / (exp(sim(z, z_glob)/T) + exp(sim(z, z_prev)/T)))               (3)
    l     = l_sup(w; x, y) + mu * l_con(w; w_prev, w_t; x)                                               (4)

sim is the cosine. The client's last model is in the device's state; nothing else travels than in FedAvg. mu = 0 is
FedAvg, bit for bit.

Deviations and readings:

- The representation is what enters the model's last linear layer; a projection head is a matter of the model.
- In a client's first visit there is no last model, and l_con is left out. (The authors' code takes initial weights of
  the client's own for it.)
- Both models that z is compared with are in evaluation mode: batch-norm uses their running statistics, which stay
  as they are.
- The paper tries mu 0.1, 1, 5, 10 and T 0.1, 0.5, 1; its T is 0.5. mu 1 is the authors' code's default.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Annotated, Any, cast

import torch
from pydantic import Field
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from shared.federation.hooks import (
    Algorithm,
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
    default_local,
    operations,
    starting_model,
)
from shared.training.models import Classifier, write_state


class Params(Record):
    """mu: weight of the contrastive loss; temperature: T."""

    mu: Annotated[float, Field(ge=0, le=1e3)] = 1.0
    temperature: Annotated[float, Field(gt=0, le=1e3)] = 0.5


class Own(OwnBuffers):
    """A device's state: the model that its last visit trained."""

    own: ModelState = Field(default_factory=dict)


def contrastive(z: Tensor, z_glob: Tensor, z_prev: Tensor, temperature: float) -> Tensor:
    """l_con, mean over the batch, of representations (batch, d)."""
    sims = torch.stack([cosine_similarity(z, z_glob), cosine_similarity(z, z_prev)], 1)  # (batch, 2)
    return cross_entropy(sims / temperature, torch.zeros(len(z), dtype=torch.int64, device=z.device))  # (3)


class Contrast:
    """Objective (4) of one visit; its two frozen models are made of the one in training when that is first seen."""

    def __init__(self, received: TensorMap, last: TensorMap, params: Any) -> None:
        self.states, self.params = (received, last), params
        self.frozen: list[Classifier] = []

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of a batch, and its logits."""
        mine = cast("Classifier", model)
        if not self.frozen:
            self.frozen = [_frozen(mine, state) for state in self.states]
        z: Tensor = mine.features(x)
        logits: Tensor = mine.head(z)
        with torch.no_grad():
            z_glob, z_prev = (other.features(x) for other in self.frozen)
        pulled = contrastive(z, z_glob, z_prev, self.params.temperature)
        return cross_entropy(logits, y) + self.params.mu * pulled, logits  # (4)


def _frozen(model: Classifier, state: TensorMap) -> Classifier:
    """A copy of a model with another state, for looking at."""
    other = copy.deepcopy(model).requires_grad_(False).eval()
    write_state(other, state)
    return other


def mean_operations(params: Params, model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Operations of a step on (4); a client's first visit, which has no last model, takes as long."""
    own = operations(lambda: cross_entropy(model(x), y))
    with Operations() as looking, torch.no_grad():
        cast("Classifier", model).features(x)
    return own + (2 * looking.n if params.mu else 0)


class Device(DeviceHooks):
    """Local SGD on (4)."""

    def init(self, ctx: Context) -> Any:
        return Own()

    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        start = starting_model(state, message)
        contrast = Contrast(start, state.own, ctx.params) if ctx.params.mu and state.own else None
        fit = trainer.fit(ctx, start, objective=contrast)
        local = default_local(ctx, start, fit)
        own = fit.model if ctx.params.mu else {}
        return replace(local, state=Own(buffers=local.state.buffers, own=own))


ALGORITHM = Algorithm(
    name="moon",
    paper="Li et al.: Model-Contrastive Federated Learning. CVPR 2021",
    params=Params,
    device=Device(),
    device_state=Own,
    needs={"client": "device"},
    own_objective=lambda params: params.mu > 0,
    footprint=Footprint(flops=mean_operations),
)
