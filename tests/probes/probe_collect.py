"""A first phase of `collect`: label counts and pixel sums of each client, pooled at the cloud and broadcast later.

A seat that joins after that phase collects in its first visit, while the others train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import torch
from pydantic import Field

from shared.federation.hooks import (
    Advance,
    Algorithm,
    Begin,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    EdgeView,
    ExperimentSpec,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    NoParams,
    Nothing,
    Outcome,
    OwnBuffers,
    PerClient,
    Phase,
    Record,
    Seat,
    Task,
    Tensor,
    TensorMap,
    Trainer,
    delta_of,
)


class Statistics(Record):
    labels: Tensor  # (classes,), int64
    pixels: int


class Pool(GlobalModel):
    clients: dict[str, Statistics] = Field(default_factory=dict)


class Pooled(Broadcast):
    labels: Tensor
    pixels: int


class Collected(Record):
    delta: Annotated[ModelState | None, Mean()] = None
    statistics: Annotated[dict[str, Statistics], PerClient()] = Field(default_factory=dict)


class EdgeState(EdgeModel):
    pooled: Pooled | None = None
    collected: tuple[int, ...] = ()


class Cloud(CloudHooks[Pool, Pooled, Collected]):
    def init(self, ctx: Context, model: TensorMap) -> Pool:
        return Pool(model=model)

    def broadcast(self, ctx: Context, state: Pool, edge: int, seats: Sequence[Seat]) -> Pooled:
        every = state.clients.values()
        labels = sum((one.labels for one in every), torch.zeros(10, dtype=torch.int64))
        return Pooled(model=state.model, labels=labels, pixels=sum(one.pixels for one in every))

    def aggregate(self, ctx: Context, state: Pool, update: Collected) -> Pool:
        trained = super().aggregate(ctx, state, update) if update.delta is not None else state
        return trained.replace(clients={**state.clients, **update.statistics})


class Edge(EdgeHooks[EdgeState, Pooled, Collected]):
    def init(self, ctx: Context) -> EdgeState:
        return EdgeState()

    def begin(self, ctx: Context, state: EdgeState, broadcast: Pooled) -> Begin[EdgeState]:
        return super().begin(ctx, state.replace(pooled=broadcast), broadcast)

    def schedule(self, ctx: Context, state: EdgeState, seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
        tasks = super().schedule(ctx, state, seats, view)
        return {
            seat: task if seat in state.collected else task.replace(phase="statistics") for seat, task in tasks.items()
        }

    def dispatch(self, ctx: Context, state: EdgeState, seat: Seat) -> Pooled:
        assert state.pooled is not None
        return state.pooled

    def advance(
        self, ctx: Context, state: EdgeState, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Nothing]]
    ) -> Advance[EdgeState]:
        collected = {*state.collected, *(outcome.seat for outcome in outcomes if not outcome.failure)}
        return Advance(state.replace(collected=tuple(sorted(collected))))


class Device(DeviceHooks[OwnBuffers, Pooled, Collected]):
    def local_update(
        self, ctx: Context, state: OwnBuffers, message: Pooled, trainer: Trainer
    ) -> Local[OwnBuffers, Collected]:
        if ctx.phase == "statistics":
            x, y = (array[trainer.samples.indices] for array in trainer.arrays("train"))
            labels = torch.from_numpy(np.bincount(y, minlength=10))
            mine = Statistics(labels=labels, pixels=int(x.sum(dtype=np.int64)))
            return Local(state, Collected(statistics={ctx.client_id: mine}))
        fit = trainer.fit(ctx, message.model)
        figures: dict[str, float] = {"zeros": int(message.labels[0]), "pixels": message.pixels}
        update = Collected(delta=delta_of(ctx, fit.model, message.model))
        return Local(state, update, fit.model, fit.trained, figures=figures)


def phases(spec: ExperimentSpec, params: NoParams) -> tuple[Phase, ...]:
    return Phase("statistics", 1, kind="collect"), Phase("train", spec.num_rounds)


ALGORITHM = Algorithm(
    name="probe_collect",
    paper="none: a probe",
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    broadcast=Pooled,
    update=Collected,
    cloud_state=Pool,
    edge_state=EdgeState,
    phases=phases,
)
