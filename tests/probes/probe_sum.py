"""Sums: every visit adds 1 everywhere, which `aggregate` learns from the mean and from how many updates that is.

With `edge_rounds` above 1 an edge adds its visits up by itself, and the cloud the edges.
"""

from __future__ import annotations

from typing import Any

import torch

from shared.algorithms._hooks import Algorithm, Bench, CloudHooks, DeviceHooks, EdgeHooks, Local, Update
from shared.context import Ctx
from shared.tensors import add


def total(ctx: Ctx, update: Any) -> dict[str, torch.Tensor]:
    return {name: delta * ctx.n_updates for name, delta in update.delta.items()}


class Cloud(CloudHooks):
    def aggregate(self, ctx: Ctx, state: Any, update: Any) -> Any:
        return state.but(model=add(state.model, total(ctx, update)))


class Edge(EdgeHooks):
    def forms_model(self, ctx: Ctx) -> bool:
        return ctx.spec.edge_rounds > 1

    def aggregate(self, ctx: Ctx, state: Any, update: Any) -> Any:
        return state.but(model=add(state.start, total(ctx, update)))


class Device(DeviceHooks):
    def local_update(self, ctx: Ctx, state: Any, message: Any, bench: Bench) -> Local:
        return Local(state, Update(delta={name: torch.ones_like(tensor) for name, tensor in message.model.items()}))


ALGORITHM = Algorithm(name="probe_sum", paper="none: a probe", cloud=Cloud(), edge=Edge(), device=Device())
