"""The work of an edge round: the visits that a wave requests, the rest of divided tasks, and the quorum.

A schedule that plans divides all samples among the seats. The edge round then goes on in further waves, from the same
model, until every sample of each share was trained on once. The algorithm sees them as one wave.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from edge_server.rounds.simulated_clock import EdgeClock, SimulatedFaults
from edge_server.rounds.wave import Cutoff, VisitRequest, Wave, failures_of
from shared.core.errors import NotReady
from shared.core.scores import Score
from shared.core.tensor_records import same_leaves
from shared.federation import visit_estimates
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import EdgePlacement, Failure, Outcome, Task
from shared.federation.population import Seat
from shared.federation.scheduling import Indices
from shared.storage.states import Version

MOST_TRIES = 3
"""A device that has dropped or overrun this many shares of an edge round gets no more of them."""
NO_SAMPLES = np.empty(0, np.int64)

# ---- the visits of a wave


def in_phase(experiment: Experiment, ctx: Context, tasks: Mapping[int, Task]) -> dict[int, Task]:
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


def left_out(ctx: Context, tasks: Mapping[int, Task]) -> list[int]:
    """Seats whose visits the spec declares lost."""
    named = ctx.spec.left_out(ctx.round_no, ctx.edge_round, ctx.wave)
    return sorted(seat for seat, task in tasks.items() if seat in named and task.kind != "evaluate")


def without(tasks: Mapping[int, Task], seats: Collection[int]) -> dict[int, Task]:
    """The tasks of all other seats."""
    return {seat: task for seat, task in tasks.items() if seat not in seats}


def visit_requests(
    experiment: Experiment,
    ctx: Context,
    state: Any,
    clock: EdgeClock,
    bases: Mapping[int, Version],
    tasks: Mapping[int, Task],
) -> list[VisitRequest]:
    """A request for each task. Equal messages become one object, so that they are encoded and sent once.

    Args:
        experiment: of the run.
        ctx: of the wave.
        state: the algorithm's edge state, from which its `dispatch` hook makes the messages.
        clock: knows the seats at this instant.
        bases: by seat, the version of the client state from which a visit starts.
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
        requests.append(VisitRequest(seat, tasks[seat], known[0], bases.get(seat), moved))
    return requests


def unreachable(
    experiment: Experiment, placement: EdgePlacement, edge: int, requests: Sequence[VisitRequest]
) -> list[Failure]:
    """Failures of the requests whose agent was taken offline, or is not heard by the cloud."""
    found: list[Failure] = []
    for seat in (request.seat for request in requests if experiment.seat(request.seat).role != "worker"):
        agent = placement.addresses[seat].agent
        if seat in placement.offline:
            found += failures_of([seat], edge, "offline", f"agent {agent} was taken offline")
        elif seat in placement.absent:
            found += failures_of([seat], edge, "lost", f"agent {agent} is not heard")
    return found


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


# ---- divided tasks and the quorum


@dataclass
class SharedWorkload:
    """The tasks of an edge round and their outcomes; with a schedule that plans, over several waves.

    Attributes:
        left: samples that nobody has trained on yet; None before the first wave.
        n_task: samples of all tasks of the first wave.
        lost: by seat, the failure after which it gets no more shares.
        again: how often a seat dropped a share or overran; it may get another one.
        tasks: by seat, of all waves together.
        outcomes: by seat, of all waves together.
        failed_for_real: whether a visit was lost for a reason that the simulation did not decide.
    """

    left: Indices | None = None
    n_task: int = 0
    lost: dict[int, Failure] = field(default_factory=dict)
    again: Counter[int] = field(default_factory=Counter)
    tasks: dict[int, Task] = field(default_factory=dict)
    outcomes: dict[int, Outcome[Any]] = field(default_factory=dict)
    failed_for_real: bool = False

    def take(self, tasks: Mapping[int, Task], wave: Wave) -> None:
        """Adds a wave in which the seats had these tasks."""
        failed, unrequested = wave.failed, wave.dispatch.unrequested
        undone = [seat for seat in sorted(tasks) if seat in failed or seat in wave.decision.refused]
        for seat in undone:
            if seat not in failed or (seat in unrequested and failed[seat].reason == "dropped"):  # simulated
                self.again[seat] += 1
            else:
                self.lost[seat] = failed[seat]
                self.failed_for_real |= seat not in unrequested
        if self.left is None:
            self.n_task = sum(_n(task) for task in tasks.values())
        self.left = np.sort(np.concatenate([NO_SAMPLES, *(_samples(tasks[seat]) for seat in undone)]))
        for seat, task in tasks.items():
            self._add(seat, task, wave.outcome(seat, task.kind))

    def _add(self, seat: int, task: Task, outcome: Outcome[Any]) -> None:
        """Adds a visit; of a seat that was visited before, both together."""
        if seat not in self.tasks:
            self.tasks[seat], self.outcomes[seat] = task, outcome
            return
        both = np.concatenate([_samples(self.tasks[seat]), _samples(task)])
        before = self.outcomes[seat]
        self.tasks[seat] = task.replace(samples=torch.from_numpy(np.sort(both)))
        self.outcomes[seat] = outcome.replace(
            n_samples=before.n_samples + outcome.n_samples,
            n_trained=before.n_trained + outcome.n_trained,
            n_steps=before.n_steps + outcome.n_steps,
            train=_sum(before.train, outcome.train),
            received=outcome.received or before.received,
            own=outcome.own or before.own,
        )

    def next(self, seats: Sequence[Seat], retired: Collection[int]) -> list[Seat]:
        """The seats that get the samples that are left: those that finished their share, else those that may retry."""
        if self.left is None or not len(self.left):
            return []
        able = [seat for seat in seats if seat.number not in self.lost and seat.number not in retired]
        able = [seat for seat in able if self.again[seat.number] < MOST_TRIES]
        return [seat for seat in able if not self.again[seat.number]] or able

    def require(self, edge: int, quorum: int, *, out_of_time: bool) -> None:
        """Checks that enough samples were trained on, unless the deadline or simulated faults took the others.

        Raises:
            NotReady: they were not; names the lost seats.
        """
        n_left = 0 if self.left is None else len(self.left)
        if out_of_time or not self.failed_for_real or self.n_task - n_left >= quorum:
            return
        names = "; ".join(f"seat {s}: {f.reason} ({f.detail})" for s, f in sorted(self.lost.items())[:10])
        raise NotReady(f"edge {edge}: {n_left} of {self.n_task} samples were trained on by nobody: {names}")


def require_quorum(experiment: Experiment, edge: int, wave: Wave, tasks: Mapping[int, Task]) -> None:
    """Checks that enough of the requested visits were answered.

    Raises:
        NotReady: they were not; names the lost seats.
    """
    requested = tasks.keys() - wave.dispatch.unrequested
    lost = [failure for seat, failure in sorted(wave.failed.items()) if seat in requested]
    need = experiment.spec.quorum_of(len(requested))
    if len(requested) - len(lost) < need:
        names = "; ".join(f"seat {f.seat}: {f.reason} ({f.detail})" for f in lost[:10])
        raise NotReady(f"edge {edge}: quorum of {need} of {len(requested)} visits missed: {names}")


def _samples(task: Task) -> Indices:
    return NO_SAMPLES if task.samples is None else task.samples.numpy()


def _n(task: Task) -> int:
    return len(_samples(task))


def _sum(one: Score | None, other: Score | None) -> Score | None:
    return one + other if one is not None and other is not None else one or other
