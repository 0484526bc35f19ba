"""Sums: every visit adds 1 everywhere; `aggregate` gets the sum as the mean times the number of its updates.

With `edge_rounds` above 1 an edge sums its visits, and the cloud sums the edges. Updates have equal weights: a mean by
samples over edges of different sizes, times their number, would be no sum.
"""

from __future__ import annotations

from typing import Annotated

import torch

from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Finish,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    OwnBuffers,
    Record,
    Trainer,
    add,
    delta_of,
)


class Ones(Record):
    """The update: what a visit adds."""

    delta: Annotated[ModelState, Mean(weight="one")]


def total(ctx: Context, update: Ones) -> dict[str, torch.Tensor]:
    return {name: delta * ctx.n_updates for name, delta in update.delta.items()}


class Cloud(CloudHooks[GlobalModel, Broadcast, Ones]):
    def aggregate(self, ctx: Context, state: GlobalModel, update: Ones) -> GlobalModel:
        return state.replace(model=add(state.model, total(ctx, update)))


class Edge(EdgeHooks[EdgeModel, Broadcast, Ones]):
    def forms_model(self, ctx: Context) -> bool:
        return ctx.spec.most_edge_rounds > 1

    def aggregate(self, ctx: Context, state: EdgeModel, update: Ones) -> EdgeModel:
        return state.replace(model=add(state.start, total(ctx, update)))

    def finish(self, ctx: Context, state: EdgeModel) -> Finish[EdgeModel, Ones]:
        left = state.replace(start={}, received={}, model={})
        if not self.forms_model(ctx):
            return Finish(left)
        return Finish(left, Ones(delta=delta_of(ctx, state.model, state.received)))


class Device(DeviceHooks[OwnBuffers, Broadcast, Ones]):
    def local_update(
        self, ctx: Context, state: OwnBuffers, message: Broadcast, trainer: Trainer
    ) -> Local[OwnBuffers, Ones]:
        return Local(state, Ones(delta={name: torch.ones_like(tensor) for name, tensor in message.model.items()}))


ALGORITHM = Algorithm(name="probe_sum", paper="none: a probe", cloud=Cloud(), edge=Edge(), device=Device(), update=Ones)
