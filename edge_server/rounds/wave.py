"""The records of a wave, in the order of its steps: `Dispatch`, then `AgentReplies`, then `WaveDecision`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from edge_server.rounds.simulated_clock import SimulatedFaults
from shared.federation.hooks import Verdict
from shared.federation.messages import Contribution, Failure, Kind, Outcome, Task, WaveId
from shared.simulation.cost_model import LinkUse
from shared.storage.states import Version


def failures_of(seats: Collection[int], edge: int, reason: str, detail: str) -> list[Failure]:
    """One failure for each seat."""
    return [Failure(seat=seat, edge=edge, reason=reason, detail=detail) for seat in seats]


@dataclass(frozen=True)
class VisitRequest:
    """A visit that is requested of one seat.

    Attributes:
        seat: the seat.
        task: what it is to do.
        message: what the algorithm sends it; requests with equal messages share one object.
        base_version: the version of the client's state from which the visit starts.
        moved_bytes: size of the samples that are sent to it because it does not hold them.
    """

    seat: int
    task: Task
    message: Any
    base_version: Version | None
    moved_bytes: int = 0


@dataclass(frozen=True)
class Deadline:
    """With `clock: real`, the instant at which an edge stops waiting; by default never.

    Attributes:
        at: on the monotonic clock.
        limit: how messages to people name the time limit.
    """

    at: float = math.inf
    limit: str = ""


@dataclass(frozen=True)
class Refusal:
    """Why the edge did not wait for an answer.

    Attributes:
        reason: `late`: it came after the deadline; `surplus`: enough other answers came earlier.
        at_s: when the visit was broken off, in seconds after the wave began; None means that the device finishes it.
    """

    reason: str
    at_s: float | None


@dataclass(frozen=True)
class Cutoff:
    """When an edge stops waiting for answers in a wave, in simulated seconds after it began.

    Attributes:
        deadline_s: the end of the edge round.
        n_wanted: this many answers suffice; None means that all are wanted.
        report_s: when the edge decides by the reports that it has.
    """

    deadline_s: float = math.inf
    n_wanted: int | None = None
    report_s: float = math.inf

    @property
    def closes_s(self) -> float:
        """When the edge no longer waits for answers, be they reports or updates; at the earliest 0."""
        return max(min(self.deadline_s, self.report_s), 0.0)

    def too_late(self, tasks: Mapping[int, Task]) -> list[int]:
        """Seats with a task to train or collect although the edge round has ended before the wave began."""
        over = self.deadline_s <= 0
        return sorted(seat for seat, task in tasks.items() if over and task.kind != "evaluate")

    def enough_s(self, arrivals: Mapping[int, float]) -> float | None:
        """When the wanted number of answers has come; None if it never comes, or all are wanted."""
        n, in_time = self.n_wanted, sorted(s for s in arrivals.values() if s <= self.closes_s)
        return in_time[n - 1] if n and n <= len(in_time) else None

    def refusals(self, arrivals: Mapping[int, float]) -> dict[int, Refusal]:
        """The refused seats, given the seconds after which each answers; of equal times the lower seat is first."""
        order = sorted(arrivals, key=lambda seat: (arrivals[seat], seat))
        first = [seat for seat in order if arrivals[seat] <= self.closes_s][: self.n_wanted]
        enough_s = self.enough_s(arrivals)
        refusal = Refusal("late", self.closes_s) if enough_s is None else Refusal("surplus", enough_s)
        return {seat: refusal for seat in order if seat not in first}


@dataclass(frozen=True)
class Dispatch:
    """What a wave sends out; complete before any agent is contacted.

    Attributes:
        wave_id: run, round, edge round and wave.
        tasks: by seat, also of the seats that get no request.
        requests: the visits that agents get.
        dropping: visits that the simulated device drops after it has received its order: charged, but not sent.
        at_s: when the wave begins, on the run's simulated clock.
        cutoff: when the edge stops waiting.
        faults: what the simulation decides for the seats.
        failures: of seats that get no request, and why.
        hold: whether updates stay at the agents until the edge fetches them.
        deadline: with `clock: real`, when the edge stops waiting for the answers.
        shares: by seat, the part of its scheduled task for which there is time.
        predicted: by seat, the seconds that its twin expects the visit to take, and their standard deviation.
    """

    wave_id: WaveId
    tasks: Mapping[int, Task]
    requests: list[VisitRequest]
    dropping: list[VisitRequest] = field(default_factory=list)
    at_s: float = 0.0
    cutoff: Cutoff = Cutoff()
    faults: SimulatedFaults = field(default_factory=SimulatedFaults)
    failures: list[Failure] = field(default_factory=list)
    hold: bool = False
    deadline: Deadline = Deadline()
    shares: Mapping[int, float] = field(default_factory=dict)
    predicted: Mapping[int, tuple[float, float]] = field(default_factory=dict)

    @cached_property
    def unrequested(self) -> set[int]:
        """Seats with a task but without a request (absent, left out, off, busy, dropping or too late): no quorum
        counts them."""
        return self.tasks.keys() - {request.seat for request in self.requests}

    @cached_property
    def moved_bytes(self) -> dict[int, int]:
        """By seat, size of the samples that are sent to it because it does not hold them."""
        return {item.seat: item.moved_bytes for item in (*self.requests, *self.dropping)}


@dataclass
class AgentReplies:
    """What agents answered in a wave, and what that moved. Only `AgentClient` writes it.

    Attributes:
        outcomes: of the visits, by seat.
        failures: of visits and of updates that were requested.
        used: seats whose updates are in the sum.
        late: updates of refused seats, fetched for a later round.
        held: updates that have come but do not count yet: of the edge's own worker, and of asynchronous devices.
        links: simulated bytes by seat, of the exchange that brings the answer.
        socket_bytes: size of the bodies that processes exchanged.
        testing_s: wall seconds that the visits spent on testing models.
        overdue: with `clock: real`, seats that had not answered by the deadline.
        measured: with `clock: real`, wall seconds by seat until it answered or the edge stopped waiting.
    """

    outcomes: dict[int, Outcome[Any]] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    used: set[int] = field(default_factory=set)
    late: dict[int, Contribution[Any]] = field(default_factory=dict)
    held: dict[int, Contribution[Any]] = field(default_factory=dict)
    links: dict[int, LinkUse] = field(default_factory=dict)
    socket_bytes: int = 0
    testing_s: float = 0.0
    overdue: set[int] = field(default_factory=set)
    measured: dict[int, float] = field(default_factory=dict)

    def record(self, outcome: Outcome[Any]) -> None:
        """Adds the outcome of a visit."""
        self.outcomes[outcome.seat] = outcome
        if outcome.failure is not None:
            self.failures.append(outcome.failure)

    def fail(self, seats: Collection[int], edge: int, reason: str, detail: str) -> None:
        """Adds a failure for each seat."""
        self.failures += failures_of(seats, edge, reason, detail)

    def miss_deadline(self, seats: Collection[int], edge: int, detail: str) -> None:
        """Notes seats that had not answered by the deadline."""
        self.fail(seats, edge, "late", detail)
        self.overdue |= set(seats)

    def measure(self, seats: Collection[int], wall_s: float) -> None:
        """Adds the wall seconds of an exchange."""
        self.measured |= {seat: self.measured.get(seat, 0.0) + wall_s for seat in seats}

    def failed(self) -> dict[int, Failure]:
        """The failures by seat."""
        return {failure.seat: failure for failure in self.failures if failure.seat is not None}


@dataclass(frozen=True)
class WaveDecision:
    """What the edge makes of the replies.

    Attributes:
        answered_s: when it stopped waiting for answers, in simulated seconds after the wave began. Where the algorithm
            uses reports, it decides and requests updates at this instant.
        refused: seats for whose answer, or update, it did not wait.
        unanswered: refused seats whose answer, in simulated time, never reached the edge.
        admitted: seats whose held updates are fetched for this round, in order.
        verdicts: of the algorithm on the reports, by seat.
        uploads: simulated bytes by seat, of the exchange that brings an update after its report was admitted.
    """

    answered_s: float = 0.0
    refused: Mapping[int, Refusal] = field(default_factory=dict)
    unanswered: frozenset[int] = frozenset()
    admitted: tuple[int, ...] = ()
    verdicts: Mapping[int, Verdict] = field(default_factory=dict)
    uploads: Mapping[int, LinkUse] = field(default_factory=dict)

    @property
    def late(self) -> list[int]:
        """Seats that were refused but finish their visit: their updates count in a later round."""
        return sorted(seat for seat, refusal in self.refused.items() if refusal.at_s is None)


@dataclass(frozen=True)
class Wave:
    """A wave that has ended."""

    dispatch: Dispatch
    replies: AgentReplies
    decision: WaveDecision = WaveDecision()

    @property
    def failures(self) -> list[Failure]:
        """Failures before a request was sent, then those of the requests."""
        return [*self.dispatch.failures, *self.replies.failures]

    @cached_property
    def failed(self) -> dict[int, Failure]:
        """The failures by seat."""
        return {failure.seat: failure for failure in self.failures if failure.seat is not None}

    def outcome(self, seat: int, kind: Kind) -> Outcome[Any]:
        """The outcome of a seat's visit; it holds a failure if the visit or its update was lost, or refused."""
        failure = self.failed.get(seat) or self._refusal(seat)
        known = None if seat in self.decision.unanswered else self.replies.outcomes.get(seat)
        found = known or Outcome[Any](seat=seat, kind=kind, failure=failure)
        return found if failure is None else found.replace(failure=failure)

    def _refusal(self, seat: int) -> Failure | None:
        found = self.decision.refused.get(seat)
        return Failure(seat=seat, reason=found.reason, detail="the edge did not wait for it") if found else None
