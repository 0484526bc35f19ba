"""`clock: real`: the wall seconds that a visit takes in the model, waiting for them, and the longest they can be.

This decides only how long a device waits; the edge computes the costs in the record.
"""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from functools import lru_cache

from shared.core.errors import Cancelled
from shared.federation import visit_estimates
from shared.federation.context import Context, EdgeView
from shared.federation.experiment import Experiment
from shared.federation.messages import Task
from shared.federation.population import Seat
from shared.simulation.cost_model import Cost, LinkUse, upload_cost, visit_cost

POLL_S = 0.2
"""Seconds between checks for a stop while waiting."""
MAX_WAIT_S = 1e9
"""Longest wait in seconds; cuts off the heavy tail of a distribution."""
SAFETY_FACTOR = 8
"""Safety factor: a visit trains on at most this many times its samples and sends at most this many times its model."""
NO_LINK = LinkUse()
PROFILE_HEADER = "strata-profile"
"""Edge to agent: the profile of the seats' agent; a header, since the modelled system does not send it."""


@dataclass(frozen=True)
class RealDuration:
    """The duration of a visit on its modelled device.

    Attributes:
        experiment: of the run.
        ctx: of the visit, with the edge that it visits.
        seat: with its agent's profile if the spec takes profiles from agents.
        n_trained: samples passed through training.
        share: share of its task (and of its delay) that is done; 0 if it only evaluates.
        use: bytes that it receives and sends until its answer has arrived.
    """

    experiment: Experiment
    ctx: Context
    seat: Seat
    n_trained: int = 0
    share: float = 1.0
    use: LinkUse = NO_LINK

    def wall_s(self) -> float:
        """Wall seconds until the visit's answer."""
        if not self.share:
            return 0.0
        flops = self.n_trained * self.experiment.flops
        return self._wall_s(visit_cost(self.seat.profile, self._far_s, self.use, flops, self._ctx.seed, self.share))

    def upload_wall_s(self, use: LinkUse) -> float:
        """Wall seconds of the second exchange, which uploads an update that the edge has admitted."""
        return self._wall_s(upload_cost(self.seat.profile, self._far_s, use, self._ctx.seed, wait_s=0.0))

    @property
    def _ctx(self) -> Context:
        return self.ctx.at(seat=self.seat.number)

    @property
    def _far_s(self) -> float:
        return self.seat.latency_to(self.ctx.edge)

    def _wall_s(self, cost: Cost) -> float:
        return min(cost.simulated_s * self.experiment.spec.time_scale, MAX_WAIT_S)


def longest_s(experiment: Experiment, ctx: Context, seat: Seat, task: Task, down_bytes: int) -> float:
    """An upper bound, in wall seconds, of a visit with this task, whatever is drawn at random and the update's size."""
    if task.kind == "evaluate":
        return 0.0
    extra = ctx.model.passes.max_extra(seat.n_train * ctx.spec.versions)
    n_passed = SAFETY_FACTOR * visit_estimates.samples_due(ctx, task, seat) + extra
    return _longest_s(ctx, seat, seat.latency_to(ctx.edge), n_passed, down_bytes)


def longest_round_s(experiment: Experiment, edge_rounds: int, waves: int) -> float:
    """An upper bound, in wall seconds, of the visits in all edge rounds of a round; 0 with simulated time.

    Args:
        experiment: of the run.
        edge_rounds: number of edge rounds in the round.
        waves: number of waves in each edge round.
    """
    spec = experiment.spec
    if spec.clock == "simulated":
        return 0.0
    if spec.round_deadline_s is not None:
        return min(spec.round_deadline_s * spec.time_scale * edge_rounds, MAX_WAIT_S)
    return min(_slowest_s(experiment) * waves * edge_rounds, MAX_WAIT_S)


@lru_cache(maxsize=1)
def _slowest_s(experiment: Experiment) -> float:
    """An upper bound of any visit."""
    ctx, n_samples = (
        experiment.ctx(phase=experiment.phase_of(1).name, round_no=1, n_clients=1, edge=0),
        experiment.population.total_samples,
    )
    n_passed = SAFETY_FACTOR * _most_due(experiment, ctx) + ctx.model.passes.max_extra(n_samples * ctx.spec.versions)
    down_bytes = SAFETY_FACTOR * (ctx.model.n_bytes + visit_estimates.HEAD_BYTES) + n_samples * ctx.model.sample_bytes
    return max(
        _longest_s(ctx, seat, max(seat.latency_s, default=0.0), n_passed, down_bytes)
        for seat in experiment.population.seats
    )


def _most_due(experiment: Experiment, ctx: Context) -> float:
    """The most samples a visit passes: the spec's epochs on all samples, or the largest task that an edge schedules."""
    hooks, seats = (
        experiment.algorithm.edge,
        {seat.number: seat for seat in experiment.population.seats if seat.role != "held_out"},
    )
    tasks = hooks.schedule(ctx, hooks.init(ctx), list(seats.values()), EdgeView())
    scheduled = (visit_estimates.samples_due(ctx, task, seats[number]) for number, task in tasks.items())
    n_samples = experiment.population.total_samples * ctx.spec.versions
    return max(ctx.model.passes.of(ctx.spec.local_epochs * n_samples, n_samples), *scheduled, 0)


def _longest_s(ctx: Context, seat: Seat, latency_s: float, n_passed: float, down_bytes: int) -> float:
    up_bytes = SAFETY_FACTOR * (ctx.model.n_bytes + visit_estimates.HEAD_BYTES)
    use = LinkUse(down_bytes=down_bytes, up_bytes=up_bytes)
    cost: Cost = visit_cost(seat.profile, latency_s, use, n_passed * ctx.model.flops, lambda purpose: (1 << 63) - 1)
    return min(cost.simulated_s * ctx.spec.time_scale, MAX_WAIT_S)


async def wait_until(instant: float, stop: threading.Event) -> None:
    """Waits for an instant of the monotonic clock.

    Raises:
        Cancelled: the caller disconnected.
    """
    while (left_s := instant - time.monotonic()) > 0:
        if stop.is_set():
            raise Cancelled("task cancelled: the caller disconnected")
        await asyncio.sleep(min(left_s, POLL_S))
