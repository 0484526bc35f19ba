"""Separate messages, of a new type, for each seat; the cloud stores a number and a tensor per client and returns them.

In round 1 seat i gets the factor i + 1; it answers twice its factor, which it gets in the next round. Its update is
its factor / 64 everywhere; nothing is trained.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field

from shared.federation.hooks import (
    Algorithm,
    Begin,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    OwnBuffers,
    PerClient,
    Record,
    Seat,
    Tensor,
    TensorMap,
    Trainer,
)


class Kept(GlobalModel):
    factors: dict[str, int] = Field(default_factory=dict)
    biases: dict[str, Tensor] = Field(default_factory=dict)


class Factors(Broadcast):
    factors: dict[int, int]


class Factor(Broadcast):
    factor: int


class Doubled(Record):
    delta: Annotated[ModelState, Mean()]
    factors: Annotated[dict[str, int], PerClient()]
    biases: Annotated[dict[str, Tensor], PerClient()]


class OfSeats(EdgeModel):
    factors: dict[int, int] = Field(default_factory=dict)


class Cloud(CloudHooks[Kept, Factors, Doubled]):
    def init(self, ctx: Context, model: TensorMap) -> Kept:
        return Kept(model=model)

    def broadcast(self, ctx: Context, state: Kept, edge: int, seats: Sequence[Seat]) -> Factors:
        here = {seat.number: state.factors.get(f"device-{seat.number}", seat.number + 1) for seat in seats}
        return Factors(model=state.model, factors=here)

    def aggregate(self, ctx: Context, state: Kept, update: Doubled) -> Kept:
        after = super().aggregate(ctx, state, update)
        return after.replace(factors={**state.factors, **update.factors}, biases={**state.biases, **update.biases})


class Edge(EdgeHooks[OfSeats, Factors, Doubled, Factor]):
    def init(self, ctx: Context) -> OfSeats:
        return OfSeats()

    def begin(self, ctx: Context, state: OfSeats, broadcast: Factors) -> Begin[OfSeats]:
        return super().begin(ctx, state.replace(factors=broadcast.factors), broadcast)

    def dispatch(self, ctx: Context, state: OfSeats, seat: Seat) -> Factor:
        return Factor(model=state.start, factor=state.factors[seat.number])


class Device(DeviceHooks[OwnBuffers, Factor, Doubled]):
    def local_update(
        self, ctx: Context, state: OwnBuffers, message: Factor, trainer: Trainer
    ) -> Local[OwnBuffers, Doubled]:
        delta = {name: torch.full_like(tensor, message.factor / 64) for name, tensor in message.model.items()}
        bias = message.model["head.bias"] + message.factor
        mine = ctx.client_id
        update = Doubled(delta=delta, factors={mine: 2 * message.factor}, biases={mine: bias})
        return Local(state, update, figures={"factor": message.factor})


ALGORITHM = Algorithm(
    name="probe_seat",
    paper="none: a probe",
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    broadcast=Factors,
    message=Factor,
    update=Doubled,
    cloud_state=Kept,
    edge_state=OfSeats,
)
