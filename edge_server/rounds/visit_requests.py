"""The visits that a wave requests of seats, and the failures of seats that get no request."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from edge_server.rounds.simulated_clock import EdgeClock, SimulatedFaults
from edge_server.rounds.wave import Cutoff, VisitRequest, failures_of
from shared.core.tensor_records import same_leaves
from shared.federation import visit_estimates
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure, Task
from shared.federation.placements import EdgePlacement
from shared.storage.states import Version


def apply_phase_kind(experiment: Experiment, ctx: Context, tasks: Mapping[int, Task]) -> dict[int, Task]:
    """The tasks; in a collecting phase those that train become `collect`."""
    kinds = {phase.name: phase.kind for phase in experiment.phases}
    return {
        seat: task.replace(kind="collect")
        if task.kind == "train" and kinds.get(task.phase or ctx.phase) == "collect"
        else task
        for seat, task in tasks.items()
    }


def cut_to_time(ctx: Context, clock: EdgeClock, tasks: Mapping[int, Task], cutoff: Cutoff) -> Mapping[int, Task]:
    """The tasks; with `partial_work` cut to the time until the edge round ends, or until the edge decides."""
    if not ctx.spec.partial_work:
        return tasks
    limits = [(cutoff.deadline_s, True)] + ([(cutoff.report_s, False)] if cutoff.report_s < np.inf else [])
    for limit_s, update in limits:
        tasks = {
            seat: visit_estimates.partial(ctx, task, clock.seat(seat), limit_s, update=update)
            for seat, task in tasks.items()
        }
    return tasks


def seats_left_out(ctx: Context, tasks: Mapping[int, Task]) -> list[int]:
    """Seats whose visits the spec declares lost."""
    named = ctx.spec.lost_visits_in(ctx.round_no, ctx.edge_round, ctx.wave)
    return sorted(seat for seat, task in tasks.items() if seat in named and task.kind != "evaluate")


def without(tasks: Mapping[int, Task], seats: Collection[int]) -> dict[int, Task]:
    """The tasks of all other seats."""
    return {seat: task for seat, task in tasks.items() if seat not in seats}


def visit_requests(
    experiment: Experiment,
    ctx: Context,
    state: Any,
    clock: EdgeClock,
    base_versions: Mapping[int, Version],
    tasks: Mapping[int, Task],
) -> list[VisitRequest]:
    """A request for each task. Equal messages become one object, so that they are encoded and sent once.

    Args:
        experiment: of the run.
        ctx: of the wave.
        state: the algorithm's edge state, from which its `dispatch` hook makes the messages.
        clock: knows the seats at this instant.
        base_versions: by seat, the version of the client state from which a visit starts.
        tasks: by seat.
    """
    requests: list[VisitRequest] = []
    coded = experiment.compressor.messages()
    distinct: list[tuple[Any, Any]] = []  # as the algorithm made it, and as it is sent
    for seat in sorted(tasks):
        message = experiment.algorithm.edge.dispatch(ctx, state, clock.seat(seat))
        known = [sent for other, sent in distinct if same_leaves(other, message)]
        if not known:
            known = [coded(message)]
            distinct.append((message, known[0]))
        moved = experiment.moved_bytes(seat, tasks[seat])
        requests.append(VisitRequest(seat, tasks[seat], known[0], base_versions.get(seat), moved))
    return requests


def reachable(
    experiment: Experiment, placement: EdgePlacement, edge: int, requests: Sequence[VisitRequest]
) -> tuple[list[VisitRequest], list[Failure]]:
    """The requests that can be sent, and failures of the others: their agent is offline, or sends no heartbeats."""
    found: list[Failure] = []
    for seat in (request.seat for request in requests if experiment.population.role(request.seat) != "worker"):
        host = placement.host(seat)
        if host.presence == "offline":
            found += failures_of([seat], edge, "offline", f"agent {host.agent} was taken offline")
        elif host.presence == "absent":
            why = f"the cloud receives no heartbeats from agent {host.agent}, or it lacks what it needs"
            found += failures_of([seat], edge, "lost", why)
    gone = {failure.seat for failure in found}
    return [request for request in requests if request.seat not in gone], found


def simulated_failures(faults: SimulatedFaults, edge: int, at_s: float) -> list[Failure]:
    """Failures of the seats that are off, drop their visit, or still work on a late update."""
    found: list[Failure] = []
    for seat in faults.off:
        found += failures_of([seat], edge, "unavailable", f"the device is off at second {at_s:.3f}")
    for seat, share in faults.dropped.items():
        found += failures_of([seat], edge, "dropped", f"the device dropped after {share:.1%} of its work")
    for seat, until_s in faults.busy.items():
        found += failures_of([seat], edge, "busy", f"still at work on its late update until second {until_s:.3f}")
    return found
