"""Who of a wave comes in time, by simulated arrival: the deadline, and the first of more than are wanted."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edge_server.clock import EdgeClock
from edge_server.devices import Devices
from edge_server.wave import Refusal, Wave
from shared.context import Ctx
from shared.costs import Cost, LinkUse


@dataclass(frozen=True)
class Gate:
    """When an edge stops waiting for the answers of a wave.

    Attributes:
        deadline_s: seconds after the wave began.
        n_wanted: answers that suffice; None = all.
    """

    deadline_s: float = math.inf
    n_wanted: int | None = None

    def enough_s(self, arrivals: Mapping[int, float]) -> float | None:
        """When as many answers are there as are wanted; None if they never are, or all are wanted."""
        n, in_time = self.n_wanted, sorted(s for s in arrivals.values() if s <= self.deadline_s)
        return in_time[n - 1] if n and n <= len(in_time) else None

    def refusals(self, arrivals: Mapping[int, float]) -> dict[int, Refusal]:
        """Who is refused, of seats with the seconds after which they answer; of equals the lower seat is first."""
        order = sorted(arrivals, key=lambda seat: (arrivals[seat], seat))
        first = [seat for seat in order if arrivals[seat] <= self.deadline_s][: self.n_wanted]
        enough_s = self.enough_s(arrivals)
        refusal = Refusal("late", self.deadline_s) if enough_s is None else Refusal("surplus", enough_s)
        return {seat: refusal for seat in order if seat not in first}

    def lasted_s(self, wave: Wave, costs: Mapping[int, Cost], dropped: Collection[int]) -> float:
        """Until enough are there, or all; where somebody is missing, until the deadline, if there is one.

        `costs` are those of the visits that count; evaluation takes no time.
        """
        missing = {*wave.refused, *dropped} & costs.keys()
        slowest_s = max((cost.simulated_s for seat, cost in costs.items() if seat not in missing), default=0.0)
        if wave.enough_s is not None:
            return max(slowest_s, wave.enough_s)
        if missing and self.deadline_s < math.inf:
            return max(self.deadline_s, 0.0)
        return max([slowest_s, *(costs[seat].simulated_s for seat in missing)])


@dataclass(frozen=True)
class Arrivals:
    """A gate before a wave whose visits have been made and whose updates are held."""

    clock: EdgeClock
    devices: Devices
    gate: Gate
    ctx: Ctx

    def answers(self, wave: Wave) -> None:
        """Refuse whose answer is not there in time: its report where the algorithm has one, else its update."""
        whole = self.clock.lab.algorithm.report is None
        trained = [s for s, found in wave.outcomes.items() if found.failure is None and found.kind != "evaluate"]
        arrivals = {seat: self._arrives_s(wave, seat, whole=whole) for seat in trained}
        refusals = self.gate.refusals(arrivals)
        if self.ctx.spec.late == "next_round":
            refusals |= {s: Refusal("late", None) for s in self._goes_on(wave, refusals)}
        wave.refused |= refusals
        wave.unheard |= refusals.keys()
        wave.enough_s = self.gate.enough_s(arrivals)

    def _goes_on(self, wave: Wave, refusals: Mapping[int, Refusal]) -> list[int]:
        """The late ones that have an update to send."""
        return [s for s, found in refusals.items() if found.reason == "late" and wave.outcomes[s].held_bytes]

    def updates(self, wave: Wave, admitted: Collection[int]) -> None:
        """Refuse whose update is late of those that the algorithm admitted by their reports."""
        arrivals = {seat: self._arrives_s(wave, seat, whole=True) for seat in admitted}
        wave.refused |= Gate(self.gate.deadline_s).refusals(arrivals)

    def break_off(self, wave: Wave, seat: int) -> Cost:
        """What a refused seat did until it was refused; its links are charged with that and no more."""
        at_s = wave.refused[seat].at_s
        if at_s is None:
            return self.cost(wave, seat)
        use = self._use(wave, seat, whole=self.clock.lab.algorithm.report is None or seat not in wave.unheard)
        cost, done = self.clock.broken_off(self.ctx, seat, use, wave.outcomes[seat], at_s)
        if seat in wave.links:
            wave.links[seat] = done
            wave.reports[seat] = min(wave.reports.get(seat, 0), done.up_bytes)
        return cost

    def cost(self, wave: Wave, seat: int) -> Cost:
        """What a visit cost that ended, by what it has received and sent."""
        return self.clock.cost(self.ctx, seat, wave.links.get(seat, LinkUse()), wave.outcomes[seat])

    def _arrives_s(self, wave: Wave, seat: int, *, whole: bool) -> float:
        """When a seat's answer is there; `whole`: with its update, which is still held."""
        use = self._use(wave, seat, whole=whole)
        return self.clock.cost(self.ctx, seat, use, wave.outcomes[seat]).simulated_s

    def _use(self, wave: Wave, seat: int, *, whole: bool) -> LinkUse:
        """What such a visit receives and sends; an edge's own worker has no link."""
        use, held = wave.links.get(seat, LinkUse()), wave.outcomes[seat].held_bytes
        if not (whole and held and seat in wave.links):
            return use
        return use + LinkUse(down_bytes=self.devices.upload_order_bytes(wave.stage, seat), up_bytes=held)
