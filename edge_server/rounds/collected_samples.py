"""What devices collect, on its way to their edge: `collected: travels`.

When a round begins, each device that is on and whose last upload has ended sends what it has collected since, as one
body on its own link. An update of that device waits until it has ended. A round divides the samples that are at its
edge when it begins. An edge that has none yet waits for the uploads under way, or, if all devices are off, until the
first is on again and its upload has come.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from edge_server.rounds.simulated_clock import EdgeClock
from shared.core.bounds import Amount, Count
from shared.core.records import Record
from shared.federation.context import Context


class Upload(Record):
    """The newest upload of a device's collected samples.

    Attributes:
        n_before: samples that its edge had before.
        n_sent: samples that it has with this upload.
        ends_s: when it arrives, on the run's simulated clock; until then the device's link is busy.
    """

    n_before: Count = 0
    n_sent: Count = 0
    ends_s: Amount = 0.0

    def at_edge(self, at_s: float) -> int:
        """How many of the device's samples are at its edge at a simulated time."""
        return self.n_sent if self.ends_s <= at_s else self.n_before


@dataclass
class CollectedSamples:
    """The uploads of one edge's devices, by seat, and what those of this round cost.

    Attributes:
        uploads: the newest of each device.
        n_bytes: of this round's uploads.
        energy_j: by seat, of this round's uploads.
    """

    uploads: dict[int, Upload] = field(default_factory=dict)
    n_bytes: int = 0
    energy_j: dict[int, float] = field(default_factory=dict)

    def begin_s(self, clock: EdgeClock, ctx: Context, seats: Collection[int]) -> float:
        """Sends what devices have collected; returns when the round can begin, on the run's simulated clock."""
        at_s, waiting = clock.at_s, {seat for seat in seats if clock.experiment.seat_in(seat, ctx.round_no).n_train}
        self._send(clock, ctx, waiting, at_s)
        if not waiting or any(self.at_edge(waiting, at_s).values()):
            return at_s
        if not self._under_way(waiting, at_s):
            on_s = [found for seat in waiting if (found := clock.on_s(seat, at_s)) is not None]
            self._send(clock, ctx, waiting, min(on_s, default=at_s))
        return max(self._under_way(waiting, at_s), default=at_s)

    def _under_way(self, seats: Collection[int], at_s: float) -> list[float]:
        return [
            self.uploads[seat].ends_s for seat in seats if seat in self.uploads and self.uploads[seat].ends_s > at_s
        ]

    def _send(self, clock: EdgeClock, ctx: Context, seats: Collection[int], at_s: float) -> None:
        for seat in sorted(seats):
            last, n = self.uploads.get(seat, Upload()), clock.experiment.seat_in(seat, ctx.round_no).n_train
            if n <= last.n_sent or last.ends_s > at_s or clock.on_s(seat, at_s) != at_s:
                continue
            n_bytes = (n - last.n_sent) * clock.experiment.sample_bytes
            cost = clock.collected_cost(ctx, seat, n_bytes)
            self.uploads[seat] = Upload(n_before=last.n_sent, n_sent=n, ends_s=at_s + cost.up_s)
            self.n_bytes += n_bytes
            self.energy_j[seat] = cost.energy_j

    def at_edge(self, seats: Collection[int], at_s: float) -> dict[int, int]:
        """By seat, how many of its samples are at the edge at a simulated time."""
        return {seat: self.uploads[seat].at_edge(at_s) if seat in self.uploads else 0 for seat in seats}

    def link_free_s(self, seats: Collection[int]) -> Mapping[int, float]:
        """By seat, when its link is free of its newest upload, on the run's simulated clock."""
        return {seat: self.uploads[seat].ends_s for seat in seats if seat in self.uploads}
