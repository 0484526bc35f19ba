"""What the record of a disturbed run must say, and the undisturbed run that it describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shared.run_records.events import Event
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from shared.run_records.visits import VisitRow
from shared.spec.experiment import ExperimentSpec

LOST = "failed"


def losses_of(details: Sequence[RoundDetail]) -> list[dict[str, Any]]:
    """The contributions that the record names as lost, as a spec names them to leave them out."""
    return [
        {"round_no": detail.round_no, "seats": seats}
        for detail in details
        if (seats := sorted({row.seat for row in detail.seats if row.outcome == LOST}))
    ]


def undisturbed(info: RunInfo, details: Sequence[RoundDetail]) -> dict[str, Any]:
    """The spec of the undisturbed run that leaves out exactly what the record names; the probe need not pause in it."""
    spec = info.spec.model_dump(mode="json") | {"losses": losses_of(details)}
    return spec | {"algorithm": {"name": info.algorithm}} if info.algorithm == "probe_counter" else spec


def reasons_of(details: Sequence[RoundDetail]) -> Counter[str]:
    """How many contributions were lost for each reason."""
    return Counter(str(row.reason) for detail in details for row in detail.seats if row.outcome == LOST)


def faults_in(info: RunInfo, details: Sequence[RoundDetail], events: Sequence[Event]) -> list[str]:
    """Where the record is silent or contradicts itself, in words; nothing is found in a sound one."""
    found = [] if [d.round_no for d in details] == list(range(1, info.num_rounds + 1)) else ["rounds are missing"]
    for detail in details:
        found += [f"round {detail.round_no}: {what}" for what in _of_round(detail, info.spec)]
    return found + _moves(details, events)


def _of_round(detail: RoundDetail, spec: ExperimentSpec) -> list[str]:
    """Every chosen seat stands in the round once; every lost one with its reason, in the rows and in the failures."""
    seats = sorted(row.seat for row in detail.seats)
    found = [] if _each_once(detail, spec) else [f"seats {seats}, not each of {spec.num_devices} once"]
    told = {seat for failure in detail.failures for seat in (failure.seat, *failure.seats) if seat is not None}
    lost = {row.seat for row in detail.seats if row.outcome == LOST}
    found += [f"seats {sorted(told ^ lost)} are lost in only one of rows and failures"] if told != lost else []
    found += [
        f"seat {row.seat} is lost for no reason" for row in detail.seats if row.outcome == LOST and not row.reason
    ]
    found += [f"a failure says nothing: {f}" for f in detail.failures if not (f.reason and f.detail)]
    return found


def _each_once(detail: RoundDetail, spec: ExperimentSpec) -> bool:
    """Whether each chosen seat stands in the round once; where shares are planned, once in each wave that it is in."""
    if spec.plans:
        return max(Counter((row.seat, row.edge_round, row.wave) for row in detail.seats).values(), default=0) <= 1
    seats, every = Counter(row.seat for row in detail.seats), Counter(range(spec.num_devices or 0))
    return seats == every if spec.select == "all" else seats <= every


def _moves(details: Sequence[RoundDetail], events: Sequence[Event]) -> list[str]:
    """A seat that another agent visits was moved, and only a moved seat has fresh state."""
    moved = {(e.data["seat"], e.data["agent"]) for e in events if e.kind in ("seat.moved", "seat.taken")}
    went = {e.data["seat"] for e in events if e.kind == "seat.moved"}
    found, sits = [], dict[int, str | None]()
    for detail in details:
        for row in detail.seats:
            if sits.get(row.seat, row.agent) != row.agent and (row.seat, row.agent) not in moved:
                found.append(f"round {detail.round_no}: seat {row.seat} went to {row.agent}, no event says so")
            if row.fresh_state and row.seat not in went:
                found.append(f"round {detail.round_no}: seat {row.seat} has fresh state though it was never moved")
            sits[row.seat] = row.agent
    return found


def miscounts(details: Sequence[RoundDetail]) -> list[str]:
    """Where the probe's counter of a seat is not one more than after its last visit that counted."""
    found, behind = [], Counter[int]()
    for detail in details:
        for row in detail.seats:
            if row.outcome == LOST:
                continue
            due = 1 if row.fresh_state else behind[row.seat] + 1
            if _count(row) != due:
                found.append(f"round {detail.round_no}: seat {row.seat} counts {row.figures}, due is {due}")
            behind[row.seat] = _count(row)
    return found


def _count(row: VisitRow) -> int:
    return int(row.figures.get("visits", -1))
