"""Refusal by report: a seat may upload in every second round; it is retired after `max_refusals` refusals.

With `adjust` a refused seat is visited again in a second wave, where it trains and sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import Field

from shared.federation.hooks import (
    Admission,
    Advance,
    Algorithm,
    Broadcast,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Local,
    Outcome,
    Record,
    Task,
    Trainer,
    Update,
    Verdict,
)


class Params(Record):
    """keep: whether a refused seat keeps the state of its visit; None = as `on_refusal` says, it reverts."""

    keep: bool | None = None
    max_refusals: int = 99
    adjust: bool = False


class Bid(Record):
    bid: int
    visits: int


class Visits(Record):
    visits: int = 0


class Refusals(EdgeModel):
    refusals: dict[int, int] = Field(default_factory=dict)
    refused: tuple[int, ...] = ()


class Edge(EdgeHooks[Refusals, Broadcast, Update, Broadcast, Bid]):
    def init(self, ctx: Context[Params]) -> Refusals:
        return Refusals()

    def admit(self, ctx: Context[Params], state: Refusals, reports: Mapping[int, Bid]) -> Admission[Refusals]:
        verdicts = {
            seat: Verdict(
                upload=report.bid % 2 == 0,
                keep=ctx.params.keep,
                label="even" if report.bid % 2 == 0 else "odd",
                reason=None if report.bid % 2 == 0 else f"bid {report.bid}",
                figures={"reported": report.visits},
            )
            for seat, report in reports.items()
        }
        refused = [seat for seat, verdict in verdicts.items() if not verdict.upload]
        counts = {**state.refusals, **{seat: state.refusals.get(seat, 0) + 1 for seat in refused}}
        return Admission(state.replace(refusals=counts, refused=tuple(refused)), verdicts)

    def advance(
        self, ctx: Context[Params], state: Refusals, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Bid]]
    ) -> Advance[Refusals]:
        out = {
            s: f"refused {n} times" for s, n in state.refusals.items() if s in tasks and n >= ctx.params.max_refusals
        }
        again = state.refused if ctx.params.adjust and not ctx.wave else ()
        return replace(super().advance(ctx, state, tasks, outcomes), revisit=again, retire=out)


class Device(DeviceHooks[Visits, Broadcast, Update, Bid]):
    def local_update(self, ctx: Context[Params], state: Visits, message: Broadcast, trainer: Trainer) -> Local[Visits]:
        local = super().local_update(ctx, state, message, trainer)
        visits = state.visits + 1
        update = None if ctx.wave else local.update
        return replace(local, state=Visits(visits=visits), update=update, figures={"visits": visits})

    def init(self, ctx: Context[Params]) -> Visits:
        return Visits()

    def report(self, ctx: Context[Params], state: Visits, local: Local[Visits], message: Broadcast) -> Bid:
        return Bid(bid=ctx.round_no + (ctx.seat or 0), visits=state.visits)


ALGORITHM = Algorithm(
    name="probe_refuse",
    paper="none: a probe",
    params=Params,
    edge=Edge(),
    device=Device(),
    report=Bid,
    edge_state=Refusals,
    device_state=Visits,
    on_refusal="revert",
)
