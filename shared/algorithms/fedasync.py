"""FedAsync.

C. Xie, S. Koyejo, I. Gupta: Asynchronous Federated Optimization. 2019 (arXiv:1903.03934), algorithm 1.

    y        <- steps of SGD from x_tau on   f_i(y) + rho/2 |y - x_tau|^2
    alpha_t  <- alpha * s(t - tau)
    x_t+1    <- (1 - alpha_t) x_t + alpha_t y

s is the `staleness` of the tier that is asynchronous (the spec's `sync`), whose `buffer` is 1 in the paper; of several
models the mean takes the place of y. With `alpha: 1`, `rho: 0` and one device at a time it is sequential SGD.

Deviations:

- With two tiers, each that is asynchronous mixes with alpha_t; one that waits for all takes the mean of its models
  (alpha 1).
- Buffers (batch-norm statistics) are mixed like parameters.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.algorithms.fedprox import pull_towards
from shared.core.tensors import only
from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Finish,
    Fit,
    Footprint,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    OwnBuffers,
    Record,
    TensorMap,
    Trainer,
    Training,
    own_buffers,
    starting_model,
    uploaded_names,
)


class Params(Record):
    """alpha: how much of a fresh model goes into the tier's; rho: weight of the proximal term."""

    alpha: Annotated[float, Field(gt=0, le=1)] = 0.6
    rho: Annotated[float, Field(ge=0, le=1e3)] = 0.005


class Trained(Record):
    """Up: y; of an edge, its model."""

    model: Annotated[ModelState, Mean(weight="one")]


def mixed(ctx: Context[Params], model: TensorMap, update: Trained, *, at_once: bool) -> TensorMap:
    """Returns (1 - alpha_t) x + alpha_t y, where answers count `at_once`; else y."""
    alpha = ctx.params.alpha * ctx.staleness_weight if at_once else 1.0
    found = {name: tensor.lerp(update.model[name], alpha) for name, tensor in model.items() if name in update.model}
    return {**model, **found}


class Cloud(CloudHooks[GlobalModel, Broadcast, Trained]):
    """Mixes the models of edges into the global one."""

    def aggregate(self, ctx: Context[Params], state: GlobalModel, update: Trained) -> GlobalModel:
        at_once = ctx.spec.sync.edges.asynchronous
        return state.replace(model=mixed(ctx, state.model, update, at_once=at_once))


class Edge(EdgeHooks[EdgeModel, Broadcast, Trained]):
    """Mixes the models of devices into its own."""

    def aggregate(self, ctx: Context[Params], state: EdgeModel, update: Trained) -> EdgeModel:
        at_once = ctx.spec.sync.devices.asynchronous
        return state.replace(model=mixed(ctx, state.start, update, at_once=at_once))

    def finish(self, ctx: Context[Params], state: EdgeModel) -> Finish[EdgeModel, Trained]:
        return Finish(EdgeModel(), Trained(model=only(state.model, uploaded_names(ctx, state.model))))


class Device(DeviceHooks[OwnBuffers, Broadcast, Trained]):
    """Local SGD with a proximal term."""

    def training(self, ctx: Context[Params], state: OwnBuffers, message: Broadcast) -> Training:
        start = starting_model(state, message)
        names = ctx.model.trainable_names
        return Training(start, pull_towards(start, names, ctx.params.rho) if ctx.params.rho else None)

    def learned(
        self,
        ctx: Context[Params],
        state: OwnBuffers,
        message: Broadcast,
        training: Training,
        fit: Fit,
        trainer: Trainer,
    ) -> Local[OwnBuffers, Trained]:
        update = Trained(model=only(fit.model, uploaded_names(ctx, fit.model)))
        return Local(OwnBuffers(buffers=own_buffers(ctx, fit.model)), update, fit.model, fit.trained)


def sends(ctx: Context[Params], model: TensorMap) -> dict[str, frozenset[str]]:
    """Updates have the model's tensors that are sent up."""
    return {"model": uploaded_names(ctx, model)}


ALGORITHM = Algorithm(
    name="fedasync",
    paper="Xie et al.: Asynchronous Federated Optimization. 2019",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    update=Trained,
    asynchronous="yes",
    sends_models=True,
    footprint=Footprint(sends=sends),
)
