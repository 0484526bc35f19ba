"""A wave on the simulated clock: whose answer comes in time, how long the edge waits, what each visit cost.

A visit is one exchange: the order goes down, the device works, its answer with the update goes up. Where the algorithm
has reports it is two: the first brings the report; the second begins when the edge has decided, at one instant for all,
and brings the updates that it admitted.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from edge_server.rounds.agent_client import AgentClient
from edge_server.rounds.simulated_clock import EdgeClock, SimulatedFaults
from edge_server.rounds.wave import Refusal, Wave
from shared.federation.context import Context
from shared.federation.messages import Task
from shared.simulation.cost_model import Cost, LinkUse


@dataclass(frozen=True)
class Cutoff:
    """When an edge stops waiting in a wave, in seconds after it began.

    Attributes:
        deadline_s: the end of the edge round.
        n_wanted: answers that suffice; None = all.
        report_s: when it decides by the reports that it has.
    """

    deadline_s: float = math.inf
    n_wanted: int | None = None
    report_s: float = math.inf

    @property
    def closes_s(self) -> float:
        """When it waits for answers no longer, be they reports or updates; not before the wave begins."""
        return max(min(self.deadline_s, self.report_s), 0.0)

    def enough_s(self, arrivals: Mapping[int, float]) -> float | None:
        """When as many answers are there as are wanted; None if they never are, or all are wanted."""
        n, in_time = self.n_wanted, sorted(s for s in arrivals.values() if s <= self.closes_s)
        return in_time[n - 1] if n and n <= len(in_time) else None

    def refusals(self, arrivals: Mapping[int, float]) -> dict[int, Refusal]:
        """Who is refused, of seats with the seconds after which they answer; of equals the lower seat is first."""
        order = sorted(arrivals, key=lambda seat: (arrivals[seat], seat))
        first = [seat for seat in order if arrivals[seat] <= self.closes_s][: self.n_wanted]
        enough_s = self.enough_s(arrivals)
        refusal = Refusal("late", self.closes_s) if enough_s is None else Refusal("surplus", enough_s)
        return {seat: refusal for seat in order if seat not in first}


@dataclass(frozen=True)
class VisitCost:
    """What a visit cost and moved; of the bytes sent, those before the verdict."""

    cost: Cost = field(default_factory=Cost)
    use: LinkUse = field(default_factory=LinkUse)
    report_bytes: int = 0


@dataclass(frozen=True)
class WaveTiming:
    """A wave whose visits have been made, before a gate."""

    clock: EdgeClock
    devices: AgentClient
    cutoff: Cutoff
    ctx: Context
    tasks: Mapping[int, Task]
    faults: SimulatedFaults = field(default_factory=SimulatedFaults)

    @property
    def refuses(self) -> Cutoff:
        """What refuses on the simulated clock; with `clock: real` the wall clock has done so."""
        return self.cutoff if self.ctx.spec.clock == "simulated" else Cutoff()

    # ---- in time or not

    def answers(self, wave: Wave) -> None:
        """Refuse whose answer is not there in time, and note when the edge stops waiting for answers."""
        found = {s: outcome for s, outcome in wave.outcomes.items() if outcome.kind != "evaluate"}
        arrivals = {seat: self._first(wave, seat).simulated_s for seat in found}
        sound = {seat: s for seat, s in arrivals.items() if found[seat].failure is None}
        refusals = self.refuses.refusals(sound)
        wave.answered_s = self._answered_s(wave, arrivals, self.refuses.enough_s(sound))
        for seat in arrivals.keys() - sound.keys():  # the news of a failure is waited for no longer than an update
            if arrivals[seat] > wave.answered_s:
                refusals[seat] = Refusal("late", wave.answered_s)
        if self.ctx.spec.late == "next_round":
            refusals |= {seat: Refusal("late", None) for seat in self._goes_on(wave, refusals)}
        wave.refused |= refusals
        wave.unheard |= refusals.keys()

    def _answered_s(self, wave: Wave, arrivals: Mapping[int, float], enough_s: float | None) -> float:
        """When enough answers are there, or all; where one is missing, when the gate closes, if it does."""
        if enough_s is not None:
            return enough_s
        drops, closes_s = [self._dropping(wave, seat).simulated_s for seat in self.faults.dropped], self.cutoff.closes_s
        if self.ctx.spec.clock == "real":  # who answered in this world was in time, and drops are told there at once
            overdue = any(self.tasks[seat].kind != "evaluate" for seat in wave.overdue)
            told = [*arrivals.values(), *(min(drop_s, closes_s) for drop_s in drops)]
            return max([*told, *([closes_s] if overdue else [])], default=0.0)
        last_s = max([*arrivals.values(), *drops], default=0.0)
        return closes_s if closes_s < math.inf and (drops or last_s > closes_s) else last_s

    def _goes_on(self, wave: Wave, refusals: Mapping[int, Refusal]) -> list[int]:
        """The late ones that have an update to send."""
        return [s for s, found in refusals.items() if found.reason == "late" and wave.outcomes[s].held_bytes]

    def updates(self, wave: Wave, admitted: Collection[int]) -> None:
        """Ask for the updates that the algorithm admitted by their reports; refuse those that come too late."""
        for seat in sorted(admitted):
            wave.uploads[seat] = self._upload(wave, seat)
            if self.paid(wave, seat).cost.simulated_s > self.refuses.deadline_s:
                wave.refused[seat] = Refusal("late", self.cutoff.deadline_s)

    def _upload(self, wave: Wave, seat: int) -> LinkUse:
        """What the second exchange moves; an edge's own worker has no link."""
        if seat not in wave.links:
            return LinkUse()
        down, up = self.devices.upload_order_bytes(wave.stage, seat), wave.outcomes[seat].held_bytes
        return LinkUse(down_bytes=down, up_bytes=up)

    # ---- what it cost

    def lasted_s(self, wave: Wave) -> float:
        """Until the edge has what it waits for: answers, and then the updates that it asked for."""
        late = wave.refused.keys() | wave.overdue
        asked = [seat for seat in wave.uploads if seat in late or seat not in wave.failed()]
        until = [self.cutoff.deadline_s if s in late else self.paid(wave, s).cost.simulated_s for s in asked]
        return max([wave.answered_s, *until])

    def paid(self, wave: Wave, seat: int) -> VisitCost:
        """What a visit cost; one that failed in this world, or was not begun in the modelled one, cost nothing.

        One that was refused, or dropped, went on until then; and no longer than the edge waited, unless its update is
        for a later round.
        """
        if seat in self.faults.dropped:
            use = wave.links.get(seat, LinkUse())
            flops = self.clock.dropped_flops(self.ctx, seat, self.tasks[seat], self.faults.dropped[seat])
            return VisitCost(*self.clock.broken_off(seat, self._dropping(wave, seat), use, flops, wave.answered_s))
        if seat not in wave.outcomes:
            return VisitCost()
        outcome, refusal = wave.outcomes[seat], wave.refused.get(seat)
        until_s = math.inf if refusal is None or refusal.at_s is None else refusal.at_s
        flops = outcome.n_trained * self.clock.experiment.flops
        first, use = self._first(wave, seat), wave.links.get(seat, LinkUse())
        cost, done = self.clock.broken_off(seat, first, use, flops, until_s)
        report_bytes = done.up_bytes if outcome.report is not None else 0
        if not (self.clock.experiment.algorithm.reports and outcome.held_bytes) or first.simulated_s > wave.answered_s:
            return VisitCost(cost, done, report_bytes)
        asked = {} if seat in wave.failed() else wave.uploads
        upload = asked.get(seat, LinkUse())
        second = self.clock.upload_cost(self.ctx, seat, upload, wave.answered_s - first.simulated_s)
        cost_2, done_2 = self.clock.broken_off(seat, second, upload, 0.0, until_s - first.simulated_s)
        return VisitCost(cost + cost_2, done + done_2, report_bytes)

    def _first(self, wave: Wave, seat: int) -> Cost:
        """The first exchange of a visit as a whole."""
        return self.clock.cost(self.ctx, seat, wave.links.get(seat, LinkUse()), wave.outcomes[seat])

    def _dropping(self, wave: Wave, seat: int) -> Cost:
        """What a visit that is dropped took until then."""
        use, share = wave.links.get(seat, LinkUse()), self.faults.dropped[seat]
        return self.clock.dropped_cost(self.ctx, seat, use, self.tasks[seat], share)
