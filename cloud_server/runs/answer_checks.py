"""Checks of an edge's answer: what its seats can have done, given what the cloud knows of them.

An edge that claims anything else loses its contribution to the round.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from shared.core.bounds import MAX_COUNT
from shared.core.errors import WireError
from shared.core.number_sets import NumberSet
from shared.core.update_annotations import Mean, clients_in, fields_with
from shared.federation.aggregation import PartialSum, check_partial_sum
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import RoundAnswer
from shared.federation.update_checks import check_origin
from shared.federation.update_weights import n_buffered
from shared.run_records.visits import Scored, VisitRecord

USED = frozenset({"used", "used_late"})
"""Outcomes of visits whose update is in the edge's sum; of one that only `collected` it may be."""


@dataclass(frozen=True)
class AnswerChecks:
    """Checks of one edge's answer.

    Attributes:
        experiment: of the run.
        ctx: of the round, at the edge.
        edge: number of the edge.
        seats: that visit it, and its workers.
    """

    experiment: Experiment
    ctx: Context
    edge: int
    seats: NumberSet

    def check(self, answer: RoundAnswer[Any]) -> None:
        """Checks that an answer covers only these seats, and holds what they can have sent.

        Raises:
            BadInput, NotFinite, OutOfBound, WireError: it covers other seats, claims more than they have, or its sum
                is not valid.
        """
        if answer.edge != self.edge:
            raise WireError(f"the answer of edge {self.edge} is that of edge {answer.edge}")
        self._check_names(answer)
        self._check_versions(answer)
        self._check_failures(answer)
        for line in answer.lines:
            self._check_line(line)
        self._check_counts(answer)
        self._check_scores(answer, "the edge")
        self._check_weight(answer)
        update: Any = answer.update
        if answer.partial_sum is not None:
            update = check_partial_sum(
                answer.partial_sum,
                self.experiment.algorithm.update,
                self.experiment.fixed_point,
                model=self.experiment.shapes,
            )
        if update is not None:
            self._check_update(update)

    def _check_names(self, answer: RoundAnswer[Any]) -> None:
        named = {visit.seat for visit in answer.lines} | answer.bases.keys() | answer.retired.keys()
        named |= {failure.seat for failure in answer.failures if failure.seat is not None}
        unknown = sorted(seat for seat in named if seat not in self.seats)
        if unknown:
            raise WireError(f"the answer of edge {self.edge} names devices that do not work for it: {unknown[:20]}")
        scored_on = set(answer.own_on).union(*(visit.own_on for visit in answer.lines))
        others = scored_on - set(self.experiment.spec.test_on)
        if others:
            what = f"scores on {min(others)[:40]!r}, which is not a test set of this run"
            raise WireError(f"the answer of edge {self.edge} has {what}")

    def _check_versions(self, answer: RoundAnswer[Any]) -> None:
        """Checks that the states which count next were saved by this round."""
        for version in (*answer.bases.values(), *([] if answer.base is None else [answer.base])):
            if not 0 <= version.round_no <= self.ctx.round_no or min(version) < 0:
                raise WireError(f"the answer of edge {self.edge} names a state of round {version.round_no}")

    def _check_failures(self, answer: RoundAnswer[Any]) -> None:
        most = 2 * len(answer.lines) + len(self.seats)  # of a visit and of its update, and of late updates
        if len(answer.failures) > most:
            raise WireError(f"the answer of edge {self.edge} has {len(answer.failures)} failures, at most {most}")
        other = next((failure.edge for failure in answer.failures if failure.edge not in (None, self.edge)), None)
        if other is not None:
            raise WireError(f"the answer of edge {self.edge} has a failure at edge {other}")

    def _check_line(self, line: VisitRecord) -> None:
        """Checks that a visit has no more samples than its seat has; with shares, than all seats have together."""
        held, whose = self._n_held(line.seat), "it has"
        if not self._keeps_own_data:
            held, whose = self._n_together, "all devices of this edge have"
        if line.n_samples > held:
            claim = f"the answer of edge {self.edge}: device {line.seat} trained on {line.n_samples} samples"
            raise WireError(f"{claim}, {whose} {held}", field="lines.n_samples")
        spec = self.experiment.spec
        n_versions = max(self.ctx.round_no, 1) * spec.edge_rounds_at(self.edge) if spec.sync.devices.asynchronous else 1
        if line.staleness >= n_versions:
            claim = (
                f"the answer of edge {self.edge}: device {line.seat} claims to have trained a model {line.staleness}"
            )
            raise WireError(f"{claim} versions old, of {n_versions}", field="lines.staleness")
        self._check_scores(line, f"device {line.seat}")

    def _check_scores(self, scored: Scored, whose: str) -> None:
        """Checks that scores are of as many samples as there are, with the states of the run's metrics."""
        most = len(self.experiment.data.train_y) + len(self.experiment.data.test_y)
        found = [("received", scored.received, most), ("own", scored.own, most)]
        found += [(f"own_on.{name}", score, self._n_tests[name]) for name, score in scored.own_on.items()]
        if isinstance(scored, VisitRecord):
            found.append(("train", scored.train, MAX_COUNT))  # which passes through a sample any number of times
        for name, score, limit in found:
            fault = None if score is None else self.experiment.scoring.fault(name, score, limit)
            if fault is not None:
                raise WireError(f"the answer of edge {self.edge}: {whose} has {fault}")

    @cached_property
    def _n_tests(self) -> dict[str, int]:
        """Samples of each test set of the spec's `test_on`."""
        sets = self.experiment.population.test_sets
        return {name: sum(len(part.samples) for part in sets[name]) for name in self.experiment.spec.test_on}

    def _check_counts(self, answer: RoundAnswer[Any]) -> None:
        """Checks that no edge round is of more updates than its devices can have made: of each device one, and one that
        came late; of asynchronous ones as many as make a version. Sums have no room for more.
        """
        sync, used = self.experiment.spec.sync.devices, [line for line in answer.lines if line.outcome in USED]
        if sync.asynchronous:
            most, counts = n_buffered(sync, len(self.seats)), Counter(f"edge round {line.edge_round}" for line in used)
        elif self._keeps_own_data:
            most = 1
            counts = Counter(f"edge round {one.edge_round} of device {one.seat}, {one.outcome}" for one in used)
        else:
            return
        for where, n in counts.most_common(1):
            if n > most:
                raise WireError(
                    f"the answer of edge {self.edge} has {n} updates in {where}; at most {most} count", field="lines"
                )

    def _check_weight(self, answer: RoundAnswer[Any]) -> None:
        """Checks the weight of the edge's sum or update against the visits that are behind it."""
        if answer.partial_sum is not None:
            total = answer.partial_sum
            if not self._is_sum_of_last(answer, total.n_updates, total.n_samples):
                self._refuse_weight(answer, "sum", total.n_updates, total.n_samples)
            self._check_staleness(answer, total)
        elif answer.update is not None and answer.n_updates:
            mean = self._is_sum_of_last(answer, answer.n_updates, answer.n_samples)
            own = answer.n_updates == 1 and answer.n_samples <= self._most_of_all(answer)
            if not mean and not own:
                self._refuse_weight(answer, "mean", answer.n_updates, answer.n_samples)

    def _check_staleness(self, answer: RoundAnswer[Any], total: PartialSum) -> None:
        """Checks that a sum weights each visit by the staleness in its line."""
        staleness = self.experiment.spec.sync.devices.staleness
        if staleness.scale == 1:
            return
        lines = [(line, staleness.steps(line.staleness)) for line in _of_last(answer, USED)]
        due = {"samples": sum(n * line.n_samples for line, n in lines), "one": sum(n for _, n in lines)}
        for name, how in fields_with(self.experiment.algorithm.update, Mean).items():
            weight = total.means[name].weight if name in total.means else due[how.weight]
            if weight != due[how.weight]:
                claim = f"the answer of edge {self.edge} weights {name} by {weight}"
                raise WireError(f"{claim}, its lines by {due[how.weight]}", field="partial_sum")

    def _is_sum_of_last(self, answer: RoundAnswer[Any], n_updates: int, n_samples: int) -> bool:
        """Whether so many updates and samples are those of the visits in the last edge round."""
        sure, maybe = _of_last(answer, USED), _of_last(answer, {*USED, "collected"})
        updates, samples = (len(sure), len(maybe)), (_weight(sure), _weight(maybe))
        return updates[0] <= n_updates <= updates[1] and samples[0] <= n_samples <= samples[1]

    def _most_of_all(self, answer: RoundAnswer[Any]) -> int:
        """The most samples that can be behind an edge's own update: each of its seats' once, and late updates."""
        late = _weight([line for line in answer.lines if line.outcome == "used_late"])
        seats = {line.seat for line in answer.lines} if self._keeps_own_data else self.seats
        return self._n_samples(seats) + late

    def _refuse_weight(self, answer: RoundAnswer[Any], what: str, n_updates: int, n_samples: int) -> None:
        lines = _of_last(answer, USED)
        raise WireError(
            f"the answer of edge {self.edge} is a {what} of {n_updates} updates and {n_samples} samples; "
            f"the tasks in its lines have {len(lines)} and {_weight(lines)}",
            field="partial_sum" if what == "sum" else "n_samples",
        )

    @property
    def _keeps_own_data(self) -> bool:
        return self.experiment.spec.schedule == "own_data"

    @cached_property
    def _n_together(self) -> int:
        return self._n_samples(self.seats)

    def _n_held(self, seat: int) -> int:
        return self.experiment.seat_in(seat, self.ctx.round_no).n_train

    def _n_samples(self, seats: Collection[int] | NumberSet) -> int:
        """The number of samples that these seats have together."""
        return sum(map(self._n_held, seats))

    def _check_update(self, update: Any) -> None:
        """The update is the edge's own if the edge forms a model, else one that its seats can have sent."""
        edge, some = self.ctx, list(islice(self.seats, 5))
        named = {int(name[7:]) for name in clients_in(update) if re.fullmatch(r"device-\d{1,9}", name)}
        clients = {edge.at(seat=seat).client_id for seat in (*some, *(seat for seat in named if seat in self.seats))}
        own = self.experiment.algorithm.edge.forms_model(edge) or not some
        check_origin(self.experiment, edge if own else edge.at(seat=some[0]), update, clients or {edge.client_id})


def _of_last(answer: RoundAnswer[Any], outcomes: Collection[str]) -> list[VisitRecord]:
    """The visits of the last edge round that ended in one of these outcomes."""
    last = max((line.edge_round for line in answer.lines), default=0)
    return [line for line in answer.lines if line.edge_round == last and line.outcome in outcomes]


def _weight(lines: Collection[VisitRecord]) -> int:
    return sum(line.n_samples for line in lines)
