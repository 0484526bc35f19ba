"""Simulated time at an edge: which devices are off, which drop their visit, and what each visit costs.

All of it follows from the spec, the seed and the simulated instant; nothing waits for it. A simulated fault
(`unavailable`, `dropped`) happens whether or not the process that hosts the device is connected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from shared.federation import visit_estimates
from shared.federation.context import Context
from shared.federation.data_arrival import first_samples
from shared.federation.experiment import Experiment
from shared.federation.messages import Outcome, Task
from shared.federation.population import Seat, device_seeds
from shared.runtime.cpu_use import CpuUse
from shared.simulation import MIN_FREE, REFERENCE_FLOPS, NoLoad, Seeds, free_share, next_on
from shared.simulation.cost_model import Cost, LinkUse, broken_off, drop_share, upload_cost, visit_cost
from shared.simulation.digital_twin import Telemetry, Twin
from shared.simulation.distributions import MIN_QUANTITY
from shared.simulation.telemetry import Channel, Device, Heard, TelemetrySpec
from shared.simulation.working_time import work_done_s, working_s


@dataclass(frozen=True)
class SimulatedFaults:
    """The simulated faults of the seats of a wave.

    Attributes:
        off: seats whose device is off, with the instant at which it is on again (None means never).
        busy: seats that still work on a late update, with the instant at which it arrives.
        dropped: seats that drop their visit, with the share of their work that they do before.
    """

    off: dict[int, float | None] = field(default_factory=dict)
    busy: dict[int, float] = field(default_factory=dict)
    dropped: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeClock:
    """Simulated time of the visits of one edge.

    Args:
        experiment: of the run.
        edge: its number.
        profile: the profile of the agent of a seat that takes it over; None for other seats.
        round_no: the round, up to which seats have collected samples; 0 means all samples.
        at_s: the simulated instant at which the free compute is known.
        estimates: by seat, the free compute in samples a second that its twin estimates from messages.
        at_edge: by seat, how many of its samples are at the edge, where they travel; others count whole.
        link_free_s: by seat, the instant until which its link is busy with samples that it collected.
        cpus: by seat, what its process reports of the CPUs of its container, with `clock: real`.
    """

    experiment: Experiment
    edge: int
    profile: Callable[[int], str | None] = lambda seat: None
    round_no: int = 0
    at_s: float = 0.0
    estimates: Mapping[int, float] = field(default_factory=dict)
    at_edge: Mapping[int, int] = field(default_factory=dict)
    link_free_s: Mapping[int, float] = field(default_factory=dict)
    cpus: Mapping[int, CpuUse] = field(default_factory=dict)

    def at(self, at_s: float) -> EdgeClock:
        """The clock at another instant."""
        return replace(self, at_s=at_s)

    def believing(self, estimates: Mapping[int, float]) -> EdgeClock:
        """The clock of an edge that knows the free compute of these seats by estimates."""
        return replace(self, estimates=estimates)

    def measured(self, cpus: Mapping[int, CpuUse]) -> EdgeClock:
        """The clock of an edge that has heard of the CPUs of these seats' containers, beside those of others."""
        if not cpus:
            return self
        free = {seat: self._seated(seat).profile.compute_sps * cpu.free_share for seat, cpu in cpus.items()}
        return replace(self, cpus={**self.cpus, **cpus}, estimates={**self.estimates, **free})

    @cached_property
    def _seats(self) -> dict[int, Seat]:
        return {}

    @cached_property
    def _estimated_seats(self) -> dict[int, Seat]:
        return {}

    def seat(self, number: int) -> Seat:
        """A seat as the edge knows it at this instant: its samples, its free compute, maybe its agent's profile."""
        if number not in self.estimates:
            return self._actual(number)
        if number not in self._estimated_seats:
            seat = self._seated(number)
            known = max(self.estimates[number], MIN_FREE * seat.profile.compute_sps, MIN_QUANTITY)
            self._estimated_seats[number] = replace(seat, profile=seat.profile.replace(compute_sps=known))
        return self._estimated_seats[number]

    def _actual(self, number: int) -> Seat:
        """A seat at this instant with the free compute that it has."""
        if number not in self._seats:
            seat = self._seated(number)
            free = 1.0 if isinstance(seat.profile.load, NoLoad) else max(self._free(seat), MIN_FREE)
            if free != 1:
                seat = replace(seat, profile=seat.profile.replace(compute_sps=seat.profile.compute_sps * free))
            self._seats[number] = seat
        return self._seats[number]

    def _seated(self, number: int) -> Seat:
        profile = self.profile(number)
        if number not in self.at_edge:
            return self.experiment.seat_in(number, self.round_no, profile)
        return first_samples(self.experiment.spec, self.experiment.seat(number, profile), self.at_edge[number])

    def _free(self, seat: Seat) -> float:
        return free_share(seat.profile.load, self.at_s, self._seeds(seat.number))

    def _seeds(self, number: int) -> Seeds:
        return device_seeds(self.experiment.spec, number)

    def telemetry(self, twin: Twin) -> Telemetry:
        """The telemetry of a twin's device at this instant; with `clock: real` its compute is the measured one.

        That is what its container lets it have, divided by what its tasks were slower than that.
        """
        number, seat = twin.seat, self._seated(twin.seat)
        seeds, battery_j = self._seeds(number), seat.profile.battery_j
        slower = twin.ratio if self.experiment.spec.clock == "real" else 1.0
        return Telemetry(
            at_s=self.at_s,
            on=next_on(seat.profile.availability, number, self.at_s, seeds) == self.at_s,
            free_sps=self.estimates.get(number, seat.profile.compute_sps * self._free(seat)) / slower,
            n_collected=self.experiment.seat_in(number, self.round_no).n_train,
            charge=None if battery_j is None else max(1 - twin.spent_j / battery_j, 0.0),
            cpu=self.cpus.get(number),
        )

    def listen(self, twin: Twin, spec: TelemetrySpec, round_began_s: float) -> Twin:
        """A twin that has read the messages of its device that have arrived by this instant."""
        seat, channel = self._seated(twin.seat), self._channel(twin.seat, spec)
        seeds, profile, message_j = channel.seeds, seat.profile, seat.profile.j_per_byte_up * spec.message_bytes

        def n_collected(at_s: float) -> int:
            now = at_s >= round_began_s or self.round_no <= 1
            return self.experiment.seat_in(twin.seat, self.round_no - (not now)).n_train

        def charge(at_s: float, n_before: int) -> float | None:
            spent_j = twin.spent_by_j(at_s) + (n_before - before.n_sent) * message_j
            return None if profile.battery_j is None else max(1 - spent_j / profile.battery_j, 0.0)

        device = Device(
            on=lambda at_s: next_on(profile.availability, twin.seat, at_s, seeds) == at_s,
            free=lambda at_s: free_share(profile.load, at_s, seeds),
            n_collected=n_collected,
            charge=charge,
        )
        before = twin.heard or channel.began(round_began_s)
        heard = channel.read(before, self.at_s, device)
        return twin.replace(heard=heard, spent_j=twin.spent_j + (heard.n_sent - before.n_sent) * message_j)

    def estimated(self, number: int, heard: Heard, spec: TelemetrySpec) -> Telemetry:
        """What the messages of a seat's device tell of it at this instant."""
        channel, profile = self._channel(number, spec), self._seated(number).profile
        return Telemetry(
            at_s=heard.since_s if heard.sent_s is None else heard.sent_s,
            on=channel.counts_as_on(heard, self.at_s),
            free_sps=profile.compute_sps * channel.share(heard, self.at_s),
            n_collected=heard.n_collected,
            charge=heard.charge,
        )

    def _channel(self, number: int, spec: TelemetrySpec) -> Channel:
        seat = self._seated(number)
        transfer_s = seat.latency_to(self.edge) + 8 * spec.message_bytes / seat.profile.up_bps
        return Channel(spec, seat.profile.load, self._seeds(number), transfer_s)

    def on_s(self, number: int, at_s: float) -> float | None:
        """The first instant from `at_s` on at which a seat's device is on; None if there is none."""
        profile = self.seat(number).profile
        return next_on(profile.availability, number, at_s, self._seeds(number))

    def faults(
        self, ctx: Context, tasks: Mapping[int, Task], at_s: float, busy: Mapping[int, float]
    ) -> SimulatedFaults:
        """The faults of a wave that begins at `at_s`; visits that only evaluate have none.

        `busy`: seats that still work, with the instants until which they do.
        """
        found = SimulatedFaults()
        for number in sorted(tasks):
            if tasks[number].kind == "evaluate":
                continue
            on_s = self.on_s(number, at_s)
            share = drop_share(self.seat(number).profile, ctx.at(seat=number).seed)
            if number in busy:
                found.busy[number] = busy[number]
            elif on_s != at_s:
                found.off[number] = on_s
            elif share is not None:
                found.dropped[number] = share
        return found

    def cost(self, ctx: Context, number: int, use: LinkUse, outcome: Outcome[Any]) -> Cost:
        """The cost of a visit that was finished; testing models takes no simulated time."""
        share = 0.0 if outcome.kind == "evaluate" else 1.0
        return self._cost(ctx, number, use, outcome.n_trained, share)

    def upload_cost(self, ctx: Context, number: int, use: LinkUse, wait_s: float) -> Cost:
        """The cost of waiting for `wait_s`, then receiving an upload order and sending the update."""
        seat = self.seat(number)
        return upload_cost(seat.profile, seat.latency_to(self.edge), use, ctx.at(seat=number).seed, wait_s)

    def collected_cost(self, ctx: Context, number: int, n_bytes: int) -> Cost:
        """The cost of sending collected samples; its jitter and link delay are drawn from streams of their own."""
        seat, seeds = self._seated(number), ctx.at(seat=number).seed
        use = LinkUse(up_bytes=n_bytes)
        return visit_cost(
            seat.profile, seat.latency_to(self.edge), use, 0.0, lambda purpose: seeds(f"collected {purpose}"), share=0.0
        )

    def dropped_cost(self, ctx: Context, number: int, use: LinkUse, task: Task, share: float) -> Cost:
        """The cost of a dropped visit: receiving its order, and a share of its task."""
        return self._cost(ctx, number, use, self._dropped_samples(ctx, number, task, share), share)

    def dropped_flops(self, ctx: Context, number: int, task: Task, share: float) -> float:
        """Floating-point operations of a dropped visit."""
        return self._dropped_samples(ctx, number, task, share) * self.experiment.flops

    def broken_off(self, number: int, cost: Cost, use: LinkUse, flops: float, at_s: float) -> tuple[Cost, LinkUse]:
        """The part of an exchange that was done until it was broken off after `at_s`; see `simulation.cost_model`."""
        seat, work_share = self._seated(number), None
        if flops and _changes(seat):
            seeds, work_s = self._seeds(number), flops / (seat.profile.compute_sps * REFERENCE_FLOPS)
            begin_s = self.at_s + cost.down_s

            def work_share(took_s: float) -> float:
                return min(work_done_s(seat.profile.load, begin_s, took_s, seeds) / work_s, 1.0)

        return broken_off(seat.profile, cost, use, flops, at_s, work_share)

    def _dropped_samples(self, ctx: Context, number: int, task: Task, share: float) -> float:
        return share * visit_estimates.samples_due(ctx, task, self.seat(number))

    def _cost(self, ctx: Context, number: int, use: LinkUse, n_trained: float, share: float) -> Cost:
        seat, flops, seeds = self._actual(number), n_trained * self.experiment.flops, ctx.at(seat=number).seed
        if not _changes(seat):
            cost = visit_cost(seat.profile, seat.latency_to(self.edge), use, flops, seeds, share)
            return self._queued(number, use, cost)
        whole, of_run = self._seated(number), self._seeds(number)

        def takes_s(begin_s: float, work_s: float) -> float:
            return working_s(whole.profile.load, self.at_s + begin_s, work_s, of_run)

        cost = visit_cost(whole.profile, whole.latency_to(self.edge), use, flops, seeds, share, takes_s)
        return self._queued(number, use, cost)

    def _queued(self, number: int, use: LinkUse, cost: Cost) -> Cost:
        """The cost of a visit whose update waits until the device's link is free."""
        if not use.up_bytes or number not in self.link_free_s:
            return cost
        ready_s = self.at_s + cost.down_s + cost.compute_s
        return replace(cost, queue_s=max(self.link_free_s[number] - ready_s, 0.0))


def _changes(seat: Seat) -> bool:
    """Whether a seat's load changes while a task runs."""
    return not isinstance(seat.profile.load, NoLoad) and seat.profile.load.during_tasks
