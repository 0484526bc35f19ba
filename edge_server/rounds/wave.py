"""One wave at an edge: what was asked of seats, and what came of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from shared.federation.messages import Contribution, Failure, Kind, Outcome, Task, WaveId
from shared.simulation.cost_model import LinkUse
from shared.storage.states import Version


@dataclass(frozen=True)
class VisitRequest:
    """One seat of a wave: its work, its message (the same object for equal ones), its state's version.

    `moved_bytes`: of samples that are sent to it, since it does not hold them.
    """

    seat: int
    task: Task
    message: Any
    base: Version | None
    moved_bytes: int = 0


@dataclass(frozen=True)
class Refusal:
    """An answer that the edge did not wait for.

    Attributes:
        reason: `late`: after the deadline; `surplus`: enough others were there first.
        at_s: when the visit was broken off, in seconds after the wave began; None: it went on to its end.
    """

    reason: str
    at_s: float | None


@dataclass(frozen=True)
class Deadline:
    """With `clock: real`, when nobody is waited for any more; without, never.

    Attributes:
        at: the instant, of the monotonic clock.
        limit: what it is the end of, as people are told.
    """

    at: float = math.inf
    limit: str = ""


@dataclass
class Wave:
    """What came of one wave.

    Attributes:
        phases: in which its visits are, by seat.
        unasked: seats that were chosen but not asked (absent, left out, off, busy, about to drop, or too late): no
            quorum counts them.
        refused: by their simulated arrival.
        unheard: of these, seats whose answer the edge has not got: in the modelled world it knows nothing of it.
        late: fetched updates of these, for a later round.
        shares: by seat, which part of the work that the algorithm asked for there was time for.
        predicted: by seat, seconds that its twin expects of its visit, and their standard deviation.
        moved_bytes: by seat, of the bytes that go down, samples that it does not hold.
        began_s: in simulated seconds after the round began.
        answered_s: when the edge stopped waiting for answers, in simulated seconds after the wave began; where the
            algorithm has reports it decides then, and asks for updates.
        held: what the edge's own worker brought and has not been admitted yet.
        links: modelled bytes by seat, of the exchange that brings the answer.
        uploads: of the exchange that brings an update which the algorithm has admitted by its report.
        socket_bytes: bodies that this layout of processes moved.
        testing_s: wall seconds in which models were tested in its visits.
        deadline: of its present exchange: until its reports are there, or its updates.
        overdue: seats that had not answered by then.
        measured: with `clock: real`, wall seconds by seat from its orders until their answers or the edge gave up.
    """

    stage: WaveId
    phases: dict[int, str] = field(default_factory=dict)
    outcomes: dict[int, Outcome[Any]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    unasked: set[int] = field(default_factory=set)
    refused: dict[int, Refusal] = field(default_factory=dict)
    unheard: set[int] = field(default_factory=set)
    late: dict[int, Contribution[Any]] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    predicted: dict[int, tuple[float, float]] = field(default_factory=dict)
    moved_bytes: dict[int, int] = field(default_factory=dict)
    began_s: float = 0.0
    answered_s: float = 0.0
    held: dict[int, Contribution[Any]] = field(default_factory=dict)
    links: dict[int, LinkUse] = field(default_factory=dict)
    uploads: dict[int, LinkUse] = field(default_factory=dict)
    socket_bytes: int = 0
    testing_s: float = 0.0
    deadline: Deadline = Deadline()
    overdue: set[int] = field(default_factory=set)
    measured: dict[int, float] = field(default_factory=dict)

    def fail(self, seats: list[int], edge: int, reason: str, detail: str) -> None:
        """Note lost contributions."""
        self.failures += [Failure(seat=seat, edge=edge, reason=reason, detail=detail[:500]) for seat in seats]

    def end_without(self, seats: list[int], edge: int, detail: str) -> None:
        """Note seats that had not answered when the wave ended."""
        self.fail(seats, edge, "late", detail)
        self.overdue |= set(seats)

    def took(self, seats: list[int], wall_s: float) -> None:
        """Note how long an order took."""
        self.measured |= {seat: self.measured.get(seat, 0.0) + wall_s for seat in seats}

    def not_asked(self, seats: list[int], edge: int, reason: str, detail: str) -> None:
        """Note contributions that were lost before anybody was asked."""
        self.fail(seats, edge, reason, detail)
        self.unasked |= set(seats)

    def not_waited_for(self, seats: list[int], refusal: Refusal) -> None:
        """Note seats that were not asked, since their answers could not have come in time."""
        self.refused |= dict.fromkeys(seats, refusal)
        self.unheard |= set(seats)
        self.unasked |= set(seats)

    def kept_for_later(self) -> list[int]:
        """Seats that were refused but go on to the end of their visit."""
        return [seat for seat, refusal in self.refused.items() if refusal.at_s is None]

    def failed(self) -> dict[int, Failure]:
        """What was lost, by seat."""
        return {failure.seat: failure for failure in self.failures if failure.seat is not None}

    def outcome(self, seat: int, kind: Kind) -> Outcome[Any]:
        """What came of a seat's visit; with its failure if it, or its update, was lost or not waited for."""
        failure = self.failed().get(seat) or self._refusal(seat)
        known = None if seat in self.unheard else self.outcomes.get(seat)
        found = known or Outcome[Any](seat=seat, kind=kind, failure=failure)
        return found if failure is None else found.replace(failure=failure)

    def _refusal(self, seat: int) -> Failure | None:
        found = self.refused.get(seat)
        return Failure(seat=seat, reason=found.reason, detail="the edge did not wait for it") if found else None
