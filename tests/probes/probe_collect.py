"""A first phase of `collect`: label counts and pixel sums of each client, pooled at the cloud and broadcast later.

A seat that came after that phase collects in its first visit, while the others train.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field

from shared.federation.hooks import (
    Advance,
    Algorithm,
    CloudHooks,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    EdgeView,
    ExperimentSpec,
    Local,
    Mean,
    ModelState,
    Outcome,
    PerClient,
    Phase,
    Record,
    Seat,
    Task,
    Tensor,
    TensorMap,
    Trainer,
)


class Statistics(Record):
    labels: Tensor  # (classes,), int64
    pixels: int


class Pool(Record):
    model: ModelState
    clients: dict[str, Statistics] = Field(default_factory=dict)


class Pooled(Record):
    model: ModelState
    labels: Tensor
    pixels: int


class Collected(Record):
    delta: Annotated[ModelState | None, Mean()] = None
    statistics: Annotated[dict[str, Statistics], PerClient()] = Field(default_factory=dict)


class Met(EdgeModel):
    pooled: Pooled | None = None
    met: tuple[int, ...] = ()


class Cloud(CloudHooks):
    def init(self, ctx: Context, model: TensorMap) -> Any:
        return Pool(model=model)

    def broadcast(self, ctx: Context, state: Any, edge: int, seats: Sequence[Seat]) -> Any:
        every = state.clients.values()
        labels = sum((one.labels for one in every), torch.zeros(10, dtype=torch.int64))
        return Pooled(model=state.model, labels=labels, pixels=sum(one.pixels for one in every))

    def aggregate(self, ctx: Context, state: Any, update: Any) -> Any:
        trained = super().aggregate(ctx, state, update) if update.delta is not None else state
        return trained.replace(clients={**state.clients, **update.statistics})


class Edge(EdgeHooks):
    def init(self, ctx: Context) -> Any:
        return Met()

    def begin(self, ctx: Context, state: Any, broadcast: Any) -> Any:
        return super().begin(ctx, state.replace(pooled=broadcast), broadcast)

    def schedule(self, ctx: Context, state: Any, seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
        tasks = super().schedule(ctx, state, seats, view)
        return {seat: task if seat in state.met else task.replace(phase="statistics") for seat, task in tasks.items()}

    def dispatch(self, ctx: Context, state: Any, seat: Seat) -> Any:
        return state.pooled

    def advance(self, ctx: Context, state: Any, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Any]]) -> Advance:
        met = {*state.met, *(outcome.seat for outcome in outcomes if not outcome.failure)}
        return Advance(state.replace(met=tuple(sorted(met))))


class Device(DeviceHooks):
    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        if ctx.phase == "statistics":
            x, y = (array[trainer.samples.indices] for array in trainer.arrays("train"))
            labels = torch.from_numpy(np.bincount(y, minlength=10))
            mine = Statistics(labels=labels, pixels=int(x.sum(dtype=np.int64)))
            return Local(state, Collected(statistics={ctx.client_id: mine}))
        local = super().local_update(ctx, state, message, trainer)
        figures = {"zeros": int(message.labels[0]), "pixels": message.pixels}
        return replace(local, update=Collected(delta=local.update.delta), figures=figures)  # type: ignore[union-attr]


def phases(spec: ExperimentSpec, params: Any) -> tuple[Phase, ...]:
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
    edge_state=Met,
    phases=phases,
)
