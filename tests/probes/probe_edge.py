"""The edge is the client: its devices and its own worker share its samples, in two waves.

In the first wave a seat trains the even positions of its share, in the second the odd ones; the share of a seat
that was lost in the first wave is given to the first seat that answered. `seen` reports which samples were trained on.
Devices wait at the gate of a test (`tests.soak.gate`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import torch
from pydantic import Field

from shared.federation import scheduling
from shared.federation.hooks import (
    Advance,
    Algorithm,
    Broadcast,
    CloudHooks,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    EdgeView,
    Finish,
    GlobalModel,
    Local,
    Mean,
    ModelState,
    Nothing,
    Outcome,
    PerClient,
    Record,
    Seat,
    Task,
    Tensor,
    TensorMap,
    Trainer,
    add,
    delta_of,
)
from tests.soak.gate import pass_gate

Seen = dict[str, Tensor]


class Shares(Record):
    delta: Annotated[ModelState, Mean()]
    seen: Annotated[Seen, PerClient()]


class Visits(Record):
    visits: int = 0


class Rounds(EdgeModel):
    rounds: int = 0
    lost: tuple[int, ...] = ()
    seen: Seen = Field(default_factory=dict)


class Known(GlobalModel):
    seen: Seen = Field(default_factory=dict)


class Cloud(CloudHooks[Known, Broadcast, Shares]):
    def init(self, ctx: Context, model: TensorMap) -> Known:
        return Known(model=model)

    def aggregate(self, ctx: Context, state: Known, update: Shares) -> Known:
        return Known(model=add(state.model, update.delta), seen=update.seen)


class Edge(EdgeHooks[Rounds, Broadcast, Shares]):
    def init(self, ctx: Context) -> Rounds:
        return Rounds()

    def schedule(self, ctx: Context, state: Rounds, seats: Sequence[Seat], view: EdgeView) -> dict[int, Task]:
        shares = scheduling.schedule(ctx.at(wave=0), seats, view)
        halves = {seat: _samples(task)[ctx.wave :: 2] for seat, task in shares.items()}
        if ctx.wave:
            successor = min(halves.keys() - set(state.lost))
            left = [_samples(shares[seat]) for seat in state.lost]
            halves[successor] = torch.cat([halves[successor], *left]).sort().values
        return {
            seat: task.replace(samples=halves[seat], evaluate=False)
            for seat, task in shares.items()
            if not (ctx.wave and seat in state.lost)
        }

    def aggregate(self, ctx: Context, state: Rounds, update: Shares) -> Rounds:
        return state.replace(model=add(state.start, update.delta))

    def advance(
        self, ctx: Context, state: Rounds, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Nothing]]
    ) -> Advance[Rounds]:
        done = {f"seat-{o.seat}-wave-{ctx.wave}": _samples(tasks[o.seat]) for o in outcomes if not o.failure}
        state = state.replace(seen={**state.seen, **done})
        if ctx.wave:
            return Advance(state)
        return Advance(state.replace(lost=tuple(o.seat for o in outcomes if o.failure)), revisit=sorted(tasks))

    def finish(self, ctx: Context, state: Rounds) -> Finish[Rounds, Shares]:
        seen = {ctx.client_id: torch.cat(list(state.seen.values()))} if state.seen else {}
        update = Shares(delta=delta_of(ctx, state.model, state.received), seen=seen)
        return Finish(Rounds(rounds=state.rounds + 1), update, figures={"rounds": state.rounds + 1})


class Device(DeviceHooks[Visits, Broadcast, Shares]):
    def init(self, ctx: Context) -> Visits:
        return Visits()

    def local_update(self, ctx: Context, state: Visits, message: Broadcast, trainer: Trainer) -> Local[Visits, Shares]:
        assert ctx.seat is not None
        pass_gate(ctx.round_no, ctx.seat)
        fit, visits = trainer.fit(ctx, message.model), state.visits + 1
        update = Shares(delta=delta_of(ctx, fit.model, message.model), seen={})
        return Local(Visits(visits=visits), update, fit.model, fit.trained, figures={"visits": visits})


def _samples(task: Task) -> Tensor:
    assert task.samples is not None
    return task.samples


ALGORITHM = Algorithm(
    name="probe_edge",
    paper="none: a probe",
    cloud=Cloud(),
    edge=Edge(),
    device=Device(),
    update=Shares,
    cloud_state=Known,
    edge_state=Rounds,
    device_state=Visits,
    headline="mean over clients",
    needs={"client": "edge", "schedule": "equal"},
)
