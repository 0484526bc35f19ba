"""The tasks of an edge round and what became of them: samples that nobody trained on yet, and the quorum.

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

from edge_server.rounds.wave import Wave
from shared.core.errors import NotReady
from shared.core.scores import Score
from shared.federation.messages import Failure, Outcome, Task
from shared.federation.population import Seat
from shared.federation.scheduling import Indices
from shared.spec.experiment import ExperimentSpec
from shared.spec.sync_rules import edges_judge_quorum

MAX_RETRIES = 3
"""A device that has dropped or overrun this many shares of an edge round gets no more of them."""
NO_SAMPLES = np.empty(0, np.int64)


@dataclass
class SharedWorkload:
    """The tasks of an edge round and their outcomes; with a schedule that plans, over several waves.

    Attributes:
        remaining: samples that no seat has trained on yet; None before the first wave.
        n_task: samples of all tasks of the first wave.
        lost: by seat, the failure after which it gets no more shares.
        n_retries: how often a seat dropped a share or overran; it may get another one.
        tasks: by seat, of all waves together.
        outcomes: by seat, of all waves together.
        has_real_failure: whether a visit was lost for a reason that the simulation did not decide.
    """

    remaining: Indices | None = None
    n_task: int = 0
    lost: dict[int, Failure] = field(default_factory=dict)
    n_retries: Counter[int] = field(default_factory=Counter)
    tasks: dict[int, Task] = field(default_factory=dict)
    outcomes: dict[int, Outcome[Any]] = field(default_factory=dict)
    has_real_failure: bool = False

    def add_wave(self, tasks: Mapping[int, Task], wave: Wave) -> None:
        """Adds a wave in which the seats had these tasks."""
        failed, unrequested = wave.failed, wave.dispatch.unrequested
        undone = [seat for seat in sorted(tasks) if seat in failed or seat in wave.decision.refused]
        for seat in undone:
            if seat not in failed or (seat in unrequested and failed[seat].reason == "dropped"):  # simulated
                self.n_retries[seat] += 1
            else:
                self.lost[seat] = failed[seat]
                self.has_real_failure |= seat not in unrequested
        if self.remaining is None:
            self.n_task = sum(_n(task) for task in tasks.values())
        self.remaining = np.sort(np.concatenate([NO_SAMPLES, *(_samples(tasks[seat]) for seat in undone)]))
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

    def next_seats(self, seats: Sequence[Seat], retired: Collection[int]) -> list[Seat]:
        """The seats that get the samples that are left: those that finished their share, else those that may retry."""
        if self.remaining is None or not len(self.remaining):
            return []
        able = [seat for seat in seats if seat.number not in self.lost and seat.number not in retired]
        able = [seat for seat in able if self.n_retries[seat.number] < MAX_RETRIES]
        return [seat for seat in able if not self.n_retries[seat.number]] or able

    def require_samples(self, edge: int, quorum: int, *, out_of_time: bool) -> None:
        """Checks that enough samples were trained on, unless the deadline or simulated faults took the others.

        Raises:
            NotReady: too few samples were trained on; names the lost seats.
        """
        n_left = 0 if self.remaining is None else len(self.remaining)
        if out_of_time or not self.has_real_failure or self.n_task - n_left >= quorum:
            return
        names = "; ".join(f"device {s}: {f.reason} ({f.detail})" for s, f in sorted(self.lost.items())[:10])
        raise NotReady(f"edge {edge}: {n_left} of {self.n_task} samples were not trained on: {names}")


def meets_quorum(spec: ExperimentSpec, edge: int, n_answered: int, lost: Sequence[Failure], *, first: bool) -> bool:
    """Whether enough of the requested visits were answered here; too few may still be enough over all edges.

    Args:
        spec: of the run.
        edge: number of this edge.
        n_answered: visits that were answered.
        lost: failures of the other requested visits.
        first: whether they are the first of their edge round; others may all be lost.

    Raises:
        NotReady: too few were answered and the quorum is this edge's own, or none was; names the lost seats.
    """
    need, n = spec.quorum_of(n_answered + len(lost)), n_answered + len(lost)
    if n_answered >= need:
        return True
    if edges_judge_quorum(spec) or (first and not n_answered):
        names = "; ".join(f"device {f.seat}: {f.reason} ({f.detail})" for f in lost[:10])
        raise NotReady(f"edge {edge}: quorum of {need} of {n} tasks missed: {names}")
    return False


def lost_requests(wave: Wave, tasks: Mapping[int, Task]) -> tuple[int, list[Failure]]:
    """The number of requested visits of these tasks that were answered, and the failures of the others."""
    requested = tasks.keys() - wave.dispatch.unrequested
    lost = [failure for seat, failure in sorted(wave.failed.items()) if seat in requested]
    return len(requested) - len(lost), lost


def _samples(task: Task) -> Indices:
    return NO_SAMPLES if task.samples is None else task.samples.numpy()


def _n(task: Task) -> int:
    return len(_samples(task))


def _sum(one: Score | None, other: Score | None) -> Score | None:
    return one + other if one is not None and other is not None else one or other
