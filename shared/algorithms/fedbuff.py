"""FedBuff.

J. Nguyen, K. Malik, H. Zhan, A. Yousefpour, M. Rabbat, M. Malek, D. Huba: Federated Learning with Buffered Asynchronous
Aggregation. AISTATS 2022, algorithm 1.

    Delta_i  <- y_i - w_tau(i)         of a client that started from version tau(i)
    w_t+1    <- w_t + eta_g / K sum_i s(t - tau(i)) Delta_i         over the K updates in the buffer

K is `buffer`, and s the `staleness`, of the tier that is asynchronous (the spec's `sync`); the paper's s is
`{name: polynomial, a: 0.5}`. Clients have equal weights, as in the paper. Weighted by samples, the same is `fedavg`
with these fields.

Deviations:

- With two tiers, each that is asynchronous is a buffer, and eta_g applies once at each. At a tier that waits for all,
  the mean of all updates is added, with eta_g if no tier below has applied it.
- eta_g applies to parameters; buffers are averaged.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from shared.core.tensors import add
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
    GlobalModel,
    Local,
    Mean,
    ModelState,
    OwnBuffers,
    Record,
    Trainer,
    Training,
    damped,
    delta_of,
    own_buffers,
)


class Params(Record):
    """server_lr: eta_g, the rate at which the mean of the updates changes the model."""

    server_lr: Annotated[float, Field(gt=0, le=1e3)] = 1.0


class Change(Record):
    """Up: y_i - w, with equal weights."""

    delta: Annotated[ModelState, Mean(weight="one")]


class Cloud(CloudHooks[GlobalModel, Broadcast, Change]):
    """Steps along the mean of a buffer."""

    def aggregate(self, ctx: Context[Params], state: GlobalModel, update: Change) -> GlobalModel:
        applied = EdgeHooks.spec_forms_model(ctx) and not ctx.spec.sync.edges.asynchronous
        rate = 1.0 if applied else ctx.params.server_lr
        return state.replace(model=add(state.model, damped(ctx, update.delta, rate)))


class Edge(EdgeHooks[EdgeModel, Broadcast, Change]):
    """Steps along the mean of a buffer, where it forms a model."""

    def forms_model(self, ctx: Context[Params]) -> bool:
        return self.spec_forms_model(ctx)

    def aggregate(self, ctx: Context[Params], state: EdgeModel, update: Change) -> EdgeModel:
        return state.replace(model=add(state.start, damped(ctx, update.delta, ctx.params.server_lr)))

    def finish(self, ctx: Context[Params], state: EdgeModel) -> Finish[EdgeModel, Change]:
        if not self.forms_model(ctx):
            return Finish(EdgeModel())
        return Finish(EdgeModel(), Change(delta=delta_of(ctx, state.model, state.received)))


class Device(DeviceHooks[OwnBuffers, Broadcast, Change]):
    """Trains as in FedAvg."""

    def learned(
        self,
        ctx: Context[Params],
        state: OwnBuffers,
        message: Broadcast,
        training: Training,
        fit: Fit,
        trainer: Trainer,
    ) -> Local[OwnBuffers, Change]:
        update = Change(delta=delta_of(ctx, fit.model, training.start))
        return Local(OwnBuffers(buffers=own_buffers(ctx, fit.model)), update, fit.model, fit.trained)


ALGORITHM = Algorithm(
    name="fedbuff",
    paper="Nguyen et al.: Federated Learning with Buffered Asynchronous Aggregation. AISTATS 2022",
    params=Params,
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    update=Change,
    asynchronous="yes",
)
