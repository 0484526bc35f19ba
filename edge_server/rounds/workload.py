"""Whether enough of a wave was done; what is left of planned shares, and who does it.

Until every sample of a share was trained on once, its edge round goes on in further waves from the same model. The
algorithm sees them as one wave.

Which works of a wave are begun, and as what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from edge_server.rounds.wave import Wave
from edge_server.rounds.wave_timing import Cutoff
from shared.core.errors import NotReady
from shared.core.scores import Score
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure, Outcome, Task
from shared.federation.population import Seat
from shared.federation.scheduling import Indices

MOST_TRIES = 3
"""So often a worker may drop its share, or overrun, before it gets no more of them in an edge round."""
NOBODY = np.empty(0, np.int64)


@dataclass
class SharedWorkload:
    """The shares of one edge round, until each sample was trained on.

    Attributes:
        left: samples that nobody has trained on yet; None before the first wave.
        lost: by seat, why it gets no more of them.
        again: seats that dropped a share or were not waited for, and how often: they are there, and may be asked again.
        works, outcomes: of all waves together, by seat.
    """

    left: Indices | None = None
    n_task: int = 0
    lost: dict[int, Failure] = field(default_factory=dict)
    again: Counter[int] = field(default_factory=Counter)
    tasks: dict[int, Task] = field(default_factory=dict)
    outcomes: dict[int, Outcome[Any]] = field(default_factory=dict)
    asked_in_vain: bool = False

    def take(self, tasks: Mapping[int, Task], wave: Wave) -> None:
        """Note what came of a wave."""
        failed = wave.failed()
        undone = [seat for seat in sorted(tasks) if seat in failed or seat in wave.refused]
        for seat in undone:
            if seat not in failed or (seat in wave.unasked and failed[seat].reason == "dropped"):  # by the model
                self.again[seat] += 1
            else:
                self.lost[seat] = failed[seat]
                self.asked_in_vain |= seat not in wave.unasked
        if self.left is None:
            self.n_task = sum(_n(task) for task in tasks.values())
        self.left = np.sort(np.concatenate([NOBODY, *(_samples(tasks[seat]) for seat in undone)]))
        for seat, task in tasks.items():
            self._remember(seat, task, wave.outcome(seat, task.kind))

    def _remember(self, seat: int, task: Task, outcome: Outcome[Any]) -> None:
        """Of a seat that was visited twice, both together."""
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
        """Who may do what is left: those who did their share; where there are none, those who may do it yet."""
        if self.left is None or not len(self.left):
            return []
        there = [seat for seat in seats if seat.number not in self.lost and seat.number not in retired]
        there = [seat for seat in there if self.again[seat.number] < MOST_TRIES]
        return [seat for seat in there if not self.again[seat.number]] or there

    def require(self, edge: int, quorum: int, *, out_of_time: bool) -> None:
        """See that enough samples were trained on, unless the deadline or the modelled world took the others.

        Raises:
            NotReady: naming who was lost.
        """
        n_left = 0 if self.left is None else len(self.left)
        if out_of_time or not self.asked_in_vain or self.n_task - n_left >= quorum:
            return
        names = "; ".join(f"seat {s}: {f.reason} ({f.detail})" for s, f in sorted(self.lost.items())[:10])
        raise NotReady(f"edge {edge}: {n_left} of {self.n_task} samples were trained on by nobody: {names}")


def require_quorum(experiment: Experiment, edge: int, wave: Wave, tasks: Mapping[int, Task]) -> None:
    """Enough of the visits that were asked for must have answered; the absent and the left out were not.

    Raises:
        NotReady: naming the lost ones.
    """
    asked = tasks.keys() - wave.unasked
    lost = [failure for seat, failure in sorted(wave.failed().items()) if seat in asked]
    need = experiment.spec.quorum_of(len(asked))
    if len(asked) - len(lost) < need:
        names = "; ".join(f"seat {f.seat}: {f.reason} ({f.detail})" for f in lost[:10])
        raise NotReady(f"edge {edge}: quorum of {need} of {len(asked)} visits missed: {names}")


def _samples(task: Task) -> Indices:
    return NOBODY if task.samples is None else task.samples.numpy()


def _n(task: Task) -> int:
    return len(_samples(task))


def _sum(one: Score | None, other: Score | None) -> Score | None:
    return one + other if one is not None and other is not None else one or other


def in_phase(experiment: Experiment, ctx: Context, tasks: Mapping[int, Task]) -> dict[int, Task]:
    """In a collecting phase nobody trains."""
    kinds = {phase.name: phase.kind for phase in experiment.phases}
    return {
        seat: task.replace(kind="collect")
        if task.kind == "train" and kinds.get(task.phase or ctx.phase) == "collect"
        else task
        for seat, task in tasks.items()
    }


def left_out(ctx: Context, tasks: Mapping[int, Task]) -> list[int]:
    """Seats whose visits the spec's losses take."""
    named = ctx.spec.left_out(ctx.round_no, ctx.edge_round, ctx.wave)
    return sorted(seat for seat, task in tasks.items() if seat in named and task.kind != "evaluate")


def too_late(tasks: Mapping[int, Task], gate: Cutoff) -> list[int]:
    """Seats that are to be visited again although the deadline has passed."""
    return sorted(s for s, task in tasks.items() if gate.deadline_s <= 0 and task.kind != "evaluate")


def without(tasks: Mapping[int, Task], seats: Collection[int]) -> dict[int, Task]:
    """The works of the others."""
    return {seat: task for seat, task in tasks.items() if seat not in seats}
