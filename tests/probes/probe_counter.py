"""A counter on each seat: the number of its visits that were used. Nothing is trained.

The update is count / 64 everywhere, so that a visit that was counted twice, or lost, changes the model; the count is
also in the visit's figures and, by client, in the cloud's state. `pause_s` is the duration of a visit; a visit also
waits at the gate of a test (`tests.soak.gate`).
"""

from __future__ import annotations

import time
from typing import Annotated

import torch
from pydantic import Field

from shared.federation.hooks import (
    Algorithm,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    PerClient,
    Record,
    TensorMap,
    Trainer,
)
from tests.soak.gate import pass_gate

TICK_S = 0.05


class Params(Record):
    """pause_s: the duration of a visit."""

    pause_s: float = Field(default=0.0, ge=0, le=60)


class Counter(Record):
    visits: int = 0


class Counted(Record):
    delta: Annotated[ModelState, Mean(weight="one")]
    visits: Annotated[dict[str, int], PerClient()]


class Counts(GlobalModel):
    visits: dict[str, int] = Field(default_factory=dict)


class Cloud(CloudHooks[Counts, Broadcast, Counted]):
    def init(self, ctx: Context[Params], model: TensorMap) -> Counts:
        return Counts(model=model)

    def aggregate(self, ctx: Context[Params], state: Counts, update: Counted) -> Counts:
        return super().aggregate(ctx, state, update).replace(visits={**state.visits, **update.visits})


class Device(DeviceHooks[Counter, Broadcast, Counted]):
    def init(self, ctx: Context[Params]) -> Counter:
        return Counter()

    def local_update(
        self, ctx: Context[Params], state: Counter, message: Broadcast, trainer: Trainer
    ) -> Local[Counter, Counted]:
        assert ctx.seat is not None
        pass_gate(ctx.round_no, ctx.seat)
        for _ in range(round(ctx.params.pause_s / TICK_S)):
            time.sleep(TICK_S)
        visits = state.visits + 1
        delta = {name: torch.full_like(tensor, visits / 64) for name, tensor in message.model.items()}
        update = Counted(delta=delta, visits={ctx.client_id: visits})
        return Local(Counter(visits=visits), update, figures={"visits": visits})


ALGORITHM = Algorithm(
    name="probe_counter",
    paper="none: a probe",
    params=Params,
    cloud=Cloud(),
    device=Device(),
    update=Counted,
    cloud_state=Counts,
    device_state=Counter,
)
