"""Which works of a wave are begun, and as what."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from edge_server.arrivals import Gate
from shared.federation.context import Ctx
from shared.federation.experiment import Lab
from shared.federation.messages import Work


def in_phase(lab: Lab, ctx: Ctx, works: Mapping[int, Work]) -> dict[int, Work]:
    """In a collecting phase nobody trains."""
    kinds = {phase.name: phase.kind for phase in lab.phases}
    return {
        seat: work.but(kind="collect")
        if work.kind == "train" and kinds.get(work.phase or ctx.phase) == "collect"
        else work
        for seat, work in works.items()
    }


def left_out(ctx: Ctx, works: Mapping[int, Work]) -> list[int]:
    """Seats whose visits the spec's losses take."""
    named = ctx.spec.left_out(ctx.round_no, ctx.edge_round, ctx.wave)
    return sorted(seat for seat, work in works.items() if seat in named and work.kind != "evaluate")


def too_late(works: Mapping[int, Work], gate: Gate) -> list[int]:
    """Seats that are to be visited again although the deadline has passed."""
    return sorted(s for s, work in works.items() if gate.deadline_s <= 0 and work.kind != "evaluate")


def without(works: Mapping[int, Work], seats: Collection[int]) -> dict[int, Work]:
    """The works of the others."""
    return {seat: work for seat, work in works.items() if seat not in seats}
