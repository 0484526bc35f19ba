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
from edge_server.rounds.wave_timing import Gate
from shared.core.errors import NotReady
from shared.core.scores import Score
from shared.federation.context import Ctx
from shared.federation.experiment import Lab
from shared.federation.messages import Failure, Outcome, Work
from shared.federation.population import Seat
from shared.federation.scheduling import Indices

MOST_TRIES = 3
"""So often a worker may drop its share, or overrun, before it gets no more of them in an edge round."""
NOBODY = np.empty(0, np.int64)


@dataclass
class Shares:
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
    works: dict[int, Work] = field(default_factory=dict)
    outcomes: dict[int, Outcome[Any]] = field(default_factory=dict)
    asked_in_vain: bool = False

    def take(self, works: Mapping[int, Work], wave: Wave) -> None:
        """Note what came of a wave."""
        failed = wave.failed()
        undone = [seat for seat in sorted(works) if seat in failed or seat in wave.refused]
        for seat in undone:
            if seat not in failed or (seat in wave.unasked and failed[seat].reason == "dropped"):  # by the model
                self.again[seat] += 1
            else:
                self.lost[seat] = failed[seat]
                self.asked_in_vain |= seat not in wave.unasked
        if self.left is None:
            self.n_task = sum(_n(work) for work in works.values())
        self.left = np.sort(np.concatenate([NOBODY, *(_samples(works[seat]) for seat in undone)]))
        for seat, work in works.items():
            self._remember(seat, work, wave.outcome(seat, work.kind))

    def _remember(self, seat: int, work: Work, outcome: Outcome[Any]) -> None:
        """Of a seat that was visited twice, both together."""
        if seat not in self.works:
            self.works[seat], self.outcomes[seat] = work, outcome
            return
        both = np.concatenate([_samples(self.works[seat]), _samples(work)])
        before = self.outcomes[seat]
        self.works[seat] = work.but(samples=torch.from_numpy(np.sort(both)))
        self.outcomes[seat] = outcome.but(
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


def require_quorum(lab: Lab, edge: int, wave: Wave, works: Mapping[int, Work]) -> None:
    """Enough of the visits that were asked for must have answered; the absent and the left out were not.

    Raises:
        NotReady: naming the lost ones.
    """
    asked = works.keys() - wave.unasked
    lost = [failure for seat, failure in sorted(wave.failed().items()) if seat in asked]
    need = lab.spec.quorum_of(len(asked))
    if len(asked) - len(lost) < need:
        names = "; ".join(f"seat {f.seat}: {f.reason} ({f.detail})" for f in lost[:10])
        raise NotReady(f"edge {edge}: quorum of {need} of {len(asked)} visits missed: {names}")


def _samples(work: Work) -> Indices:
    return NOBODY if work.samples is None else work.samples.numpy()


def _n(work: Work) -> int:
    return len(_samples(work))


def _sum(one: Score | None, other: Score | None) -> Score | None:
    return one + other if one is not None and other is not None else one or other


def in_phase(lab: Lab, ctx: Ctx, works: Mapping[int, Work]) -> dict[int, Work]:
    """In a collecting phase nobody trains."""
    kinds = {phase.name: phase.kind for phase in lab.phases}
    return {
        seat: work.but(kind="collect")
        if work.kind == "train" and kinds.get(work.phase or ctx.phase) == "collect"
        else work
        for seat, work in works.items()
    }


def left_out(ctx: Ctx, works: Mapping[int, Work]) -> list[int]:
    """Seats whose visits the spec's losses take."""
    named = ctx.spec.left_out(ctx.round_no, ctx.edge_round, ctx.wave)
    return sorted(seat for seat, work in works.items() if seat in named and work.kind != "evaluate")


def too_late(works: Mapping[int, Work], gate: Gate) -> list[int]:
    """Seats that are to be visited again although the deadline has passed."""
    return sorted(s for s, work in works.items() if gate.deadline_s <= 0 and work.kind != "evaluate")


def without(works: Mapping[int, Work], seats: Collection[int]) -> dict[int, Work]:
    """The works of the others."""
    return {seat: work for seat, work in works.items() if seat not in seats}
