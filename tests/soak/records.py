"""Checks of the record of a run with faults, and the undisturbed run that the record describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from shared.core.number_sets import NumberSet
from shared.run_records.events import Event
from shared.run_records.rounds import RoundDetail
from shared.run_records.runs import RunInfo
from shared.run_records.visits import VisitRow
from shared.spec.experiment import ExperimentSpec

LOST = "failed"


def losses_of(details: Sequence[RoundDetail]) -> list[dict[str, Any]]:
    """Returns the contributions that the record names as lost, in the form of the spec's field `losses`."""
    return [
        {"round_no": detail.round_no, "seats": seats}
        for detail in details
        if (seats := sorted({row.seat for row in detail.seats if row.outcome == LOST}))
    ]


def undisturbed(info: RunInfo, details: Sequence[RoundDetail]) -> dict[str, Any]:
    """Returns the spec of an undisturbed run that leaves out exactly what was lost; the probe does not pause in it."""
    spec = info.spec.model_dump(mode="json") | {"losses": losses_of(details)}
    return spec | {"algorithm": {"name": info.algorithm}} if info.algorithm == "probe_counter" else spec


def reasons_of(details: Sequence[RoundDetail]) -> Counter[str]:
    """Returns how many contributions were lost for each reason."""
    return Counter(str(row.reason) for detail in details for row in detail.seats if row.outcome == LOST)


def errors_in(info: RunInfo, details: Sequence[RoundDetail], events: Sequence[Event]) -> list[str]:
    """Returns the omissions and contradictions of a record, in words; a consistent record has none."""
    found = [] if [d.round_no for d in details] == list(range(1, info.num_rounds + 1)) else ["rounds are missing"]
    for detail in details:
        found += [f"round {detail.round_no}: {what}" for what in _of_round(detail, info.spec)]
    return found + _moves(details, events)


def _of_round(detail: RoundDetail, spec: ExperimentSpec) -> list[str]:
    """Checks that a round names every selected seat once, and every lost one with its reason in rows and failures."""
    seats = sorted(row.seat for row in detail.seats)
    found = [] if _each_once(detail, spec) else [f"seats {seats}, not each of {spec.num_devices} once"]
    reported = {seat for failure in detail.failures for seat in (failure.seat, *failure.seats) if seat is not None}
    lost = {row.seat for row in detail.seats if row.outcome == LOST}
    found += [f"seats {sorted(reported ^ lost)} are lost in only one of rows and failures"] if reported != lost else []
    found += [
        f"seat {row.seat} is lost for no reason" for row in detail.seats if row.outcome == LOST and not row.reason
    ]
    found += [f"a failure says nothing: {f}" for f in detail.failures if not (f.reason and f.detail)]
    return found


def _each_once(detail: RoundDetail, spec: ExperimentSpec) -> bool:
    """Whether each selected seat has one row in the round; where shares are planned, one in each of its waves."""
    if spec.plans:
        return max(Counter((row.seat, row.edge_round, row.wave) for row in detail.seats).values(), default=0) <= 1
    seats, every = Counter(row.seat for row in detail.seats), Counter(range(spec.num_devices or 0))
    return seats == every if spec.select == "all" else seats <= every


def seats_of(event: Event) -> NumberSet:
    """The seats that an event names."""
    return NumberSet.parse(event.data["seats"])


def _moves(details: Sequence[RoundDetail], events: Sequence[Event]) -> list[str]:
    """Checks that each seat with a new agent has an event for it, and that only moved seats have fresh state."""
    moved = {(seat, e.data["agent"]) for e in events if e.kind in ("seat.moved", "seat.taken") for seat in seats_of(e)}
    moved_seats = {seat for e in events if e.kind == "seat.moved" for seat in seats_of(e)}
    found, hosts = [], dict[int, str | None]()
    for detail in details:
        for row in detail.seats:
            if hosts.get(row.seat, row.agent) != row.agent and (row.seat, row.agent) not in moved:
                found.append(f"round {detail.round_no}: seat {row.seat} went to {row.agent}, no event says so")
            if row.fresh_state and row.seat not in moved_seats:
                found.append(f"round {detail.round_no}: seat {row.seat} has fresh state though it was never moved")
            hosts[row.seat] = row.agent
    return found


def miscounts(details: Sequence[RoundDetail]) -> list[str]:
    """Returns where the probe's counter of a seat is not one more than after the seat's last used visit."""
    found, counted = [], Counter[int]()
    for detail in details:
        for row in detail.seats:
            if row.outcome == LOST:
                continue
            due = 1 if row.fresh_state else counted[row.seat] + 1
            if _count(row) != due:
                found.append(f"round {detail.round_no}: seat {row.seat} counts {row.figures}, expected is {due}")
            counted[row.seat] = _count(row)
    return found


def _count(row: VisitRow) -> int:
    return int(row.figures.get("visits", -1))
