"""Refuses by report: a seat may upload in every second round; it is retired after `patience` refusals.

With `adjust` a refused seat is visited once more in a second wave, trains and sends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import Field

from shared.federation.hooks import (
    Admission,
    Advance,
    Algorithm,
    Context,
    DeviceHooks,
    EdgeHooks,
    EdgeModel,
    Local,
    Outcome,
    Record,
    Task,
    Trainer,
    Verdict,
)


class Params(Record):
    """keep: a refused seat keeps the state of its visit (else as the algorithm says: it reverts)."""

    keep: bool | None = None
    patience: int = 99
    adjust: bool = False


class Bid(Record):
    bid: int
    visits: int


class Visits(Record):
    visits: int = 0


class Refusals(EdgeModel):
    refusals: dict[int, int] = Field(default_factory=dict)
    refused: tuple[int, ...] = ()


class Edge(EdgeHooks):
    def init(self, ctx: Context) -> Any:
        return Refusals()

    def admit(self, ctx: Context, state: Any, reports: Mapping[int, Any]) -> Admission:
        verdicts = {
            seat: Verdict(
                upload=report.bid % 2 == 0,
                keep=ctx.params.keep,
                label="even" if report.bid % 2 == 0 else "odd",
                reason=None if report.bid % 2 == 0 else f"bid {report.bid}",
                figures={"told": report.visits},
            )
            for seat, report in reports.items()
        }
        refused = [seat for seat, verdict in verdicts.items() if not verdict.upload]
        counts = {**state.refusals, **{seat: state.refusals.get(seat, 0) + 1 for seat in refused}}
        return Admission(state.replace(refusals=counts, refused=tuple(refused)), verdicts)

    def advance(self, ctx: Context, state: Any, tasks: Mapping[int, Task], outcomes: Sequence[Outcome[Any]]) -> Advance:
        out = {s: f"refused {n} times" for s, n in state.refusals.items() if s in tasks and n >= ctx.params.patience}
        again = state.refused if ctx.params.adjust and not ctx.wave else ()
        return replace(super().advance(ctx, state, tasks, outcomes), again=again, retire=out)


class Device(DeviceHooks):
    def local_update(self, ctx: Context, state: Any, message: Any, trainer: Trainer) -> Local:
        local = super().local_update(ctx, state, message, trainer)
        visits = state.visits + 1
        update = None if ctx.wave else local.update
        return replace(local, state=Visits(visits=visits), update=update, figures={"visits": visits})

    def init(self, ctx: Context) -> Any:
        return Visits()

    def report(self, ctx: Context, state: Any, local: Local, message: Any) -> Any:
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
