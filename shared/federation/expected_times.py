"""How long tasks and a round are expected to take, before anything runs, and which fields of a spec change nothing.

The expectation is that of `visit_estimates`: the bytes of the model, the operations of the task, and each quantity that
is drawn for each task at its median. Load and availability are apart: see `expected_conditions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import median

import numpy as np

from shared.core.formatting import counted, duration, size
from shared.federation.context import Context
from shared.federation.data_arrival import n_arrived
from shared.federation.expected_conditions import FELT, conditions
from shared.federation.experiment import Experiment
from shared.federation.plan import plan_of
from shared.federation.population import Seat, seated
from shared.federation.population.devices import devices_of, edge_link
from shared.federation.twin_effects import telemetry_without_effect
from shared.federation.visit_estimates import HEAD_BYTES, expected, plain_task, samples_due
from shared.run_records.plans import PlannedDevices, RunPlan
from shared.simulation import Profile
from shared.simulation.cost_model import Cost, LinkUse, link_cost, transfer_s
from shared.simulation.device_specs import DeviceSpec, EdgeLinkSpec, LinkSpec
from shared.simulation.load import NoLoad
from shared.spec.experiment import ExperimentSpec
from shared.wire.codec_settings import CompressionSpec

MOST_SEATS = 1000
"""Devices that are looked at; of more, as many at equal distances."""
IDLE = "without effect"
"""How a sentence on fields that change nothing begins."""
TIMES = ("link", "compute_sps", "up_bps", "down_bps", "latency_s", "link_delay_s", "delay_s")
"""Fields of profiles and links that change the expected time of a task; `jitter_s` spreads it about the same median."""
ProfileOf = Callable[[int], str | None]
"""By device, the profile of its agent; None where the spec decides."""


@dataclass(frozen=True)
class ExpectedTimes:
    """What is expected of the first round in which devices train.

    Attributes:
        experiment: gives the model, and each device its samples.
        spec: gives the devices and links: the experiment's own, or another one.
        profile_of: the profiles of agents, where these count.
    """

    experiment: Experiment
    spec: ExperimentSpec
    profile_of: ProfileOf = lambda number: None

    @cached_property
    def seats(self) -> list[Seat]:
        """The devices that are looked at."""
        population, devices, found = self.experiment.population, devices_of(self.spec), list[Seat]()
        for number in np.unique(np.linspace(0, population.n_devices - 1, MOST_SEATS).astype(int)).tolist():
            known, of_agent = population.seat(number), self.profile_of(number)
            if known.n_train and known.role == "train":
                seat = devices.seat(number, known.role, known.samples)
                found.append(seat if of_agent is None else seated(seat, of_agent))
        return found

    @cached_property
    def costs(self) -> list[Cost]:
        """The cost of a task of each of them."""
        contexts = {edge: self._ctx(edge) for edge in {seat.home_edge for seat in self.seats}}
        task = plain_task(self._ctx(0))
        found = [(contexts[seat.home_edge], seat) for seat in self.seats]
        return [expected(ctx, seat, samples_due(ctx, task, seat)) for ctx, seat in found]

    def _ctx(self, edge: int) -> Context:
        n_clients, phase = self.experiment.population.n_training, self.experiment.phase_of(1).name
        return self.experiment.ctx(phase=phase, round_no=1, n_clients=n_clients, edge=edge)

    @cached_property
    def classes(self) -> list[PlannedDevices]:
        """The devices by profile, the quickest first."""
        by_name: dict[str, list[Cost]] = {}
        for seat, cost in zip(self.seats, self.costs, strict=True):
            slow = f", {seat.profile.slowdown:g} times slower" if seat.profile.slowdown > 1 else ""
            by_name.setdefault(f"{seat.profile.name}{slow}", []).append(cost)
        parts = {name: name for name in ("down_s", "compute_s", "up_s", "energy_j")} | {"task_s": "simulated_s"}
        found = []
        for name, costs in by_name.items():
            medians = {own: median(getattr(cost, part) for cost in costs) for own, part in parts.items()}
            found.append(PlannedDevices(name=name, n=len(costs), **medians))
        return sorted(found, key=lambda each: (each.task_s, each.name))

    @cached_property
    def edge_s(self) -> dict[int, float]:
        """By edge, the seconds of its exchange with the cloud."""
        use = self.edge_use + LinkUse(down_bytes=HEAD_BYTES, up_bytes=HEAD_BYTES)
        edges = sorted({seat.home_edge for seat in self.seats})
        return {edge: link_cost(edge_link(self.spec, edge), use, lambda _: 1 << 62).simulated_s for edge in edges}

    @cached_property
    def edge_use(self) -> LinkUse:
        """Bytes of the parameters that an edge receives and sends in a round."""
        known, ctx = self.experiment, self._ctx(0).at(spec=self.spec)
        return known.link_bytes.of_edge(ctx, replace(known.edge_compressor, spec=self.spec.edge_compression))

    @cached_property
    def last(self) -> tuple[float, Seat]:
        """Seconds of a round that waits for all devices, and the device that decides its end."""
        known = zip(self.seats, self.costs, strict=True)
        ends = [
            self.edge_s[seat.home_edge] + self.spec.edge_rounds_at(seat.home_edge) * cost.simulated_s
            for seat, cost in known
        ]
        slowest = max(range(len(ends)), key=ends.__getitem__)
        return ends[slowest], self.seats[slowest]

    def lines(self) -> Iterator[str]:
        """The expectation, and the fields of the spec that change nothing, a sentence a line."""
        if not self.seats:
            return
        yield from (f"expected: {each}" for each in self.classes)
        use, (round_s, seat) = self._ctx(0).model.link_use, self.last
        moved = f"a task moves {size(use.down_bytes)} of parameters down and {size(use.up_bytes)} up"
        if not self.spec.sync.devices.asynchronous:
            last = f"device {seat.number} at edge number {seat.home_edge}"
            yield f"expected: a round that waits for all takes {duration(round_s)}, and {last} is the last; {moved}"
        yield from (line for line in self._conditions if not line.startswith(IDLE))
        if self.spec.schedule != "own_data":
            own = "these are the times of devices that train on their own"
            yield f"expected: schedule {self.spec.schedule} divides the samples anew; {own}"
        yield from self._collected()
        if (twins := self.spec.telemetry) is not None:
            messages = f"{round_s / twins.period_s:.3g} messages of {size(twins.message_bytes)}"
            yield f"expected: a device sends {messages} to its twin in such a round"
        for plain in self._uncompressed():
            now, then = [
                f"{size(use.down_bytes)} down and {size(use.up_bytes)} up" for use in (self.edge_use, plain.edge_use)
            ]
            yield f"expected: in a round an edge moves {now} of parameters; uncompressed it would be {then}"
        yield from self.without_effect

    @cached_property
    def _conditions(self) -> tuple[str, ...]:
        return tuple(conditions(self.spec, self.seats, self.costs, self.last[0]))

    def plan(self, *of_agents: str) -> RunPlan:
        """The plan of the run, with these lines on its agents."""
        return RunPlan(
            lines=(*plan_of(self.experiment), *of_agents, *self.lines()),
            devices=tuple(self.classes),
            round_s=self.last[0] if self.seats else None,
            without_effect=self.without_effect,
        )

    def _collected(self) -> Iterator[str]:
        """What devices send to their edges before the first round can begin, where samples travel."""
        if self.spec.collected != "travels":
            return
        sizes = [n_arrived(self.spec, seat.n_train, 1) * self.experiment.sample_bytes for seat in self.seats]
        links = [(seat.profile.up_bps, seat.latency_to(seat.home_edge)) for seat in self.seats]
        times = [transfer_s(n_bytes, *link) for n_bytes, link in zip(sizes, links, strict=True)]
        what = f"up to {size(max(sizes))} of samples a device"
        yield f"expected: the first round begins {duration(max(times))} later, when {what} have come to the edge"
        if self.spec.arrival_rate is None:
            yield "without effect after the first round: collected travels: devices have all samples from the start"

    # ---- fields without effect

    @cached_property
    def without_effect(self) -> tuple[str, ...]:
        """A sentence for each field of devices, links and deadlines that the spec sets and that changes nothing."""
        return tuple(self._idle()) if self.seats else ()

    def _idle(self) -> Iterator[str]:
        yield from self._deadlines()
        yield from (line for line in self._conditions if line.startswith(IDLE))
        yield from self._stragglers()
        yield from telemetry_without_effect(self.spec, {seat.profile for seat in self.seats}, self.last[0])
        for field, devices in _other_devices(self.spec.devices):
            yield from self._tasks_unchanged(field, replace(self, spec=self.spec.replace(devices=devices)))
        for field, link in _other_links(self.spec.edge_link):
            yield from self._round_unchanged(field, replace(self, spec=self.spec.replace(edge_link=link)))
        for plain in self._uncompressed():
            yield from self._round_unchanged("edge_compression", plain, "; bytes are fewer")

    def _stragglers(self) -> Iterator[str]:
        """A sentence if the fields of stragglers make no device slower than it is, or if that is hardly felt."""
        devices, default, all_seen = self.spec.devices, DeviceSpec(), self.experiment.population.n_devices <= MOST_SEATS
        slowdown = f"straggler_slowdown {devices.straggler_slowdown:g}"
        if any(seat.profile.slowdown > 1 for seat in self.seats):
            without = replace(self, spec=self.spec.replace(devices=devices.replace(straggler_ratio=0.0)))
            yield from self._tasks_unchanged(f"{slowdown} (straggler_slows: {devices.straggler_slows})", without)
        elif devices.straggler_ratio and devices.straggler_slowdown == 1:
            yield "without effect: straggler_slowdown 1: stragglers take as long as other devices"
        elif devices.straggler_ratio and all_seen:
            n = counted(len(self.seats), "device")
            yield f"without effect: straggler_ratio {devices.straggler_ratio:g}: it makes none of {n} a straggler"
        elif not devices.straggler_ratio:
            set_ = devices.straggler_slowdown != default.straggler_slowdown
            what = slowdown if set_ else f"straggler_slows {devices.straggler_slows}"
            if set_ or devices.straggler_slows is not None:
                yield f"without effect: {what}: straggler_ratio is 0, so that no device is a straggler"

    def _uncompressed(self) -> Iterator[ExpectedTimes]:
        """The times without the codecs between edges and cloud, if there are any."""
        if self.spec.edge_compression != CompressionSpec():
            yield replace(self, spec=self.spec.replace(edge_compression=CompressionSpec()))

    def _round_unchanged(self, field: str, other: ExpectedTimes, but: str = "") -> Iterator[str]:
        """A sentence if a round that waits for all takes as long otherwise."""
        change = self._round_change(other)
        if change < FELT:
            yield f"without effect: {field} changes a round by {_percent(change)} of {duration(self.last[0])}{but}"

    def _tasks_unchanged(self, field: str, other: ExpectedTimes) -> Iterator[str]:
        """A sentence if tasks, or at least a round that waits for all, take as long with other devices."""
        pairs = [(a.simulated_s, b.simulated_s) for a, b in zip(self.costs, other.costs, strict=True)]
        most, of_round = max(map(_change, pairs)), self._round_change(other)
        compute, task = (
            duration(median(getattr(c, name) for c in self.costs)) for name in ("compute_s", "simulated_s")
        )
        if most < FELT:
            yield f"without effect: {field} changes a task by {_percent(most)}: compute is {compute} of {task}"
        elif of_round < FELT and not self.spec.sync.devices.asynchronous:
            why = f"tasks change by up to {_percent(most)}, but other devices are slower"
            yield f"without effect on a round: {field} changes it by {_percent(of_round)}: {why}"

    def _round_change(self, other: ExpectedTimes) -> float:
        return _change((self.last[0], other.last[0]))

    def _deadlines(self) -> Iterator[str]:
        """Nothing is said where tasks may take any time, may be dropped, or are not those of devices' own samples."""
        spec = self.spec
        if spec.late == "drop" and spec.staleness_discount != ExperimentSpec().staleness_discount:
            yield f"without effect: staleness_discount {spec.staleness_discount:g}: late: drop uses no late update"
        if spec.schedule != "own_data" or any(_varies(seat.profile) for seat in self.seats):
            return
        times = [
            (cost.simulated_s, 2 * seat.profile.jitter_s) for seat, cost in zip(self.seats, self.costs, strict=True)
        ]
        slowest, quickest = max(time + jitter for time, jitter in times), min(time - jitter for time, jitter in times)
        bound = any(jitter for _, jitter in times)
        for field in ("round_deadline_s", "report_deadline_s"):
            limit_s = getattr(spec, field)
            if limit_s is not None and slowest < limit_s:
                most = " at most" * bound
                yield f"without effect: {field} {limit_s:g}: the slowest task takes {duration(slowest)}{most}"
            elif limit_s is not None and field == "round_deadline_s" and quickest > limit_s:
                least = " at least" * bound
                yield f"{field} {limit_s:g} is too short for all: the quickest task takes {duration(quickest)}{least}"
        yield from self._partial_work()

    def _partial_work(self) -> Iterator[str]:
        """A sentence if less work makes no late task come in time."""
        limit_s = self.spec.round_deadline_s
        late = [cost for cost in self.costs if limit_s is not None and cost.simulated_s > limit_s]
        if self.spec.partial_work and late and limit_s is not None:
            least_s = min(cost.simulated_s - cost.compute_s for cost in late)
            if least_s >= limit_s:
                why = f"the transfers of a late task alone take {duration(least_s)}"
                yield f"without effect on what is late: partial_work: {why}"


def _varies(profile: Profile) -> bool:
    """Whether what is drawn for each task without a bound, or the load, may change a task of it, or end it."""
    drawn = any(not isinstance(delay, int | float) for delay in (profile.delay_s, profile.link_delay_s))
    return drawn or profile.drop_rate > 0 or not isinstance(profile.load, NoLoad)


def _change(pair: tuple[float, float]) -> float:
    """By which share the longer of two times is longer."""
    return max(pair) / max(min(pair), 1e-12) - 1


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _other_devices(devices: DeviceSpec) -> Iterator[tuple[str, DeviceSpec]]:
    """Each field that is set, as it is named to a user, and the devices without it."""
    if devices.edge_latency_s != DeviceSpec().edge_latency_s:
        yield "edge_latency_s", devices.replace(edge_latency_s=DeviceSpec().edge_latency_s)
    if devices.file is not None:
        yield f"devices.file {devices.file.path}", devices.replace(file=None)
    parts = devices.mixture if devices.profiles or devices.profile is not None else ()
    for field in TIMES:
        if any(getattr(part.profile, field) is not None for part in parts):
            others = [part.replace(profile=part.profile.replace(**{field: None})) for part in parts]
            changes = {"profiles": tuple(others)} if devices.profiles else {"profile": others[0].profile}
            yield f"{field} of the profile{'s' * (len(others) > 1)}", devices.replace(**changes)


def _other_links(link: EdgeLinkSpec) -> Iterator[tuple[str, EdgeLinkSpec]]:
    """Each field of the edges' links that is set, and the links without it."""
    if link.name != LinkSpec().name:
        yield f"edge_link.name {link.name}", link.replace(name=LinkSpec().name)
    for field in TIMES:
        if getattr(link, field, None) is not None:
            yield f"edge_link.{field}", link.replace(**{field: None})
    if link.by_home:
        yield "edge_link.by_home", link.replace(by_home=())
