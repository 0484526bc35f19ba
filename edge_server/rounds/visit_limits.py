"""What the report of a visit may say, given what its edge knows: the seat's samples and the visit's task.

A report determines weights in means, simulated time and energy. A visit whose report claims anything else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.core.errors import WireError
from shared.core.scores import Score
from shared.federation import visit_estimates
from shared.federation.aggregation import PartialSum
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Kind, Outcome, Task
from shared.federation.population import Seat
from shared.federation.scoring import Scoring

MAX_ANSWER_TIMES = 4
"""A seat's share of a sum has, sent alone, at most this many times the bytes of the whole answer: tensors of a sum are
wider, but the header of a compressed update is longer."""

MAX_HELD_BYTES = 2**31
"""Largest update that a device may announce: no tier reads a larger body."""
DECIDED_HERE = frozenset({"unavailable", "busy", "dropped", "late", "surplus", "left_out", "offline"})
"""Reasons that the simulation, the deadlines or the cloud decide, and no device."""


@dataclass(frozen=True)
class VisitLimits:
    """What the report of one visit may say.

    Attributes:
        seat: the visited seat.
        kind: of its task.
        n_samples: training samples of the visit, which are its weight.
        least_trained, most_trained: samples that it passes through training.
        most_tested: samples on which it can have tested a model.
        test_sets: sizes of the test sets of the spec's `test_on`.
        scoring: the run's metrics.
    """

    seat: int
    kind: Kind = "train"
    n_samples: int = 0
    least_trained: int = 0
    most_trained: int = 0
    most_tested: int = 0
    test_sets: Mapping[str, int] = field(default_factory=dict)
    scoring: Scoring = field(default_factory=Scoring)

    def check(self, outcome: Outcome[Any]) -> None:
        """Checks the numbers of a visit's outcome.

        Raises:
            WireError: names the seat, the number and what it can be.
        """
        failure = outcome.failure
        if failure is not None and failure.reason in DECIDED_HERE:
            self._refuse("failure", f"the failure {failure.reason!r}, which its edge alone decides")
        if outcome.held_bytes > MAX_HELD_BYTES:
            self._refuse("held_bytes", f"an update of {outcome.held_bytes} bytes, the limit is {MAX_HELD_BYTES}")
        done = failure is None and self.kind != "evaluate"
        n_samples, most = (self.n_samples, self.most_trained) if done else (0, 0)
        least = self.least_trained if done else 0
        if outcome.n_samples != n_samples:
            self._refuse("n_samples", f"{outcome.n_samples} training samples, it has {n_samples}")
        if not least <= outcome.n_trained <= most:
            allowed = f"{least} to {most}" if least < most else f"{most}"
            self._refuse("n_trained", f"{outcome.n_trained} samples passed through training, its task allows {allowed}")
        if outcome.n_steps > most:  # a step takes at least one sample
            self._refuse("n_steps", f"{outcome.n_steps} steps, its task allows at most {most}")
        self._check_score("train", outcome.train, most)
        self._check_score("received", outcome.received, self.most_tested)
        self._check_score("own", outcome.own, self.most_tested)
        for name, score in outcome.own_on.items():
            if name not in self.test_sets:
                known = f"which is not in the spec's test_on {list(self.test_sets)}"
                raise WireError(f"device {self.seat} was tested on {name[:40]!r}, {known}", field="outcomes.own_on")
            self._check_score(f"own_on.{name}", score, self.test_sets[name])

    def check_weight(self, n_samples: int) -> None:
        """Checks the weight with which an update comes.

        Raises:
            WireError: it is not the number of the visit's training samples.
        """
        if n_samples != self.n_samples:
            self._refuse("uploads.n_samples", f"an update of {n_samples} training samples, it has {self.n_samples}")

    def _check_score(self, name: str, score: Score | None, most: int) -> None:
        fault = self.scoring.fault(name, score, most) if score is not None else None
        if fault is not None:
            self._refuse(name, fault)

    def _refuse(self, name: str, claim: str) -> None:
        raise WireError(f"device {self.seat} reports {claim}", field=f"outcomes.{name}")


def limits_of(experiment: Experiment, ctx: Context, task: Task, seat: Seat) -> VisitLimits:
    """The limits of a visit's report.

    Args:
        experiment: of the run.
        ctx: of the visit's edge round.
        task: of the visit.
        seat: with the samples that it has collected so far.
    """
    least, most = visit_estimates.trained_limits(ctx, task, seat, exact=experiment.algorithm.trains_by_default)
    tests = experiment.population.test_sets
    return VisitLimits(
        seat.number,
        task.kind,
        n_samples=visit_estimates.n_held(task, seat),
        least_trained=least,
        most_trained=most,
        most_tested=len(experiment.data.train_y) + len(experiment.data.test_y),
        test_sets={name: sum(len(part.samples) for part in tests[name]) for name in ctx.spec.test_on},
        scoring=experiment.scoring,
    )


def check_sum(
    partial_sum: PartialSum, link_bytes: Mapping[int, int], seats: Sequence[VisitLimits], n_bytes: int
) -> None:
    """Checks that an agent's sum has the weight of the visits behind it, and that their sizes are possible.

    Args:
        partial_sum: of the updates of some seats.
        link_bytes: by seat, the bytes of its answer if sent alone, as the agent claims.
        seats: limits of these seats' visits.
        n_bytes: size of the whole answer.

    Raises:
        WireError: names the number and what it can be.
    """
    n_samples = sum(limits.n_samples for limits in seats)
    if (partial_sum.n_updates, partial_sum.n_samples) != (len(seats), n_samples):
        raise WireError(
            f"a sum of {partial_sum.n_updates} updates and {partial_sum.n_samples} samples; the tasks of devices "
            f"{[limits.seat for limits in seats][:20]} have {len(seats)} and {n_samples}",
            field="uploads.partial_sum",
        )
    most = MAX_ANSWER_TIMES * (n_bytes + visit_estimates.HEAD_BYTES)
    large = next((seat for seat, size in link_bytes.items() if size > most), None)
    if large is not None:
        raise WireError(
            f"the update of device {large} is to have {link_bytes[large]} bytes, in an answer of {n_bytes}",
            field="uploads.link_bytes",
        )
