"""What an agent sends up of its visits, and how many bytes it has: updates as they are, or their exact sum."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from shared.core.aggregation_rules import Mean
from shared.core.records import Record, Tensor
from shared.federation.aggregation import Accumulator, rule_of
from shared.federation.experiment import Experiment
from shared.federation.messages import Contribution, Outcome, UploadAnswer, Uploads, VisitAnswer
from shared.wire import codec
from shared.wire.compression import carried_bytes
from shared.wire.sparse import n_bytes


@dataclass
class FinishedVisit:
    """A finished visit: its outcome, its contribution if it made one, wall seconds in which models were tested."""

    outcome: Outcome[Any]
    contribution: Contribution[Any] | None = None
    testing_s: float = 0.0


def answer_bytes(outcome: Outcome[Any], contribution: Contribution[Any] | None) -> int:
    """Bytes of a visit's answer if the seat had sent it alone: what the modelled link carries."""
    uploads: Uploads[Any] = Uploads(contributions=(contribution,) if contribution else ())
    return codec.size(VisitAnswer(outcomes=(outcome,), uploads=uploads))


def held_bytes(outcome: Outcome[Any], contribution: Contribution[Any], *, reports: bool) -> int:
    """Bytes of the answer that brings a held update, if the seat sends it alone: after its report, or with its visit.

    Without reports only our services hold it back; in the modelled system it is part of the visit's answer.
    """
    return upload_bytes(contribution) if reports else answer_bytes(outcome.replace(held_bytes=0), contribution)


def upload_bytes(contribution: Contribution[Any]) -> int:
    """Bytes of an admitted update if the seat had sent it alone, after its report."""
    return codec.size(UploadAnswer(uploads=Uploads(contributions=(contribution,))))


@dataclass
class UploadBuilder:
    """Gathers an agent's visits; folds updates into their exact sum where that is smaller than the updates.

    With `hold` nothing is folded: the updates wait for the edge's verdict.

    Attributes:
        n_due: updates that may come: where their sum will be the smaller, none is kept until that shows.
        testing_s: wall seconds in which models were tested; no part of the answer.
    """

    experiment: Experiment
    hold: bool = False
    n_due: int = 0
    outcomes: list[Outcome[Any]] = field(default_factory=list)
    singles: list[Contribution[Any]] = field(default_factory=list)
    link_bytes: dict[int, int] = field(default_factory=dict)
    fold: Accumulator | None = None
    testing_s: float = 0.0

    def take(self, visited: FinishedVisit) -> None:
        """Add a finished visit."""
        self.outcomes.append(visited.outcome)
        self.testing_s += visited.testing_s
        contribution = visited.contribution
        if contribution is None:
            return
        if self.hold:
            self.singles.append(contribution)
            return
        self.add(contribution, answer_bytes(visited.outcome, contribution))

    def add(self, contribution: Contribution[Any], link_bytes: int) -> None:
        """Add a contribution whose own answer would have had so many bytes."""
        self.link_bytes[contribution.seat] = link_bytes
        if self.fold is None:
            self.singles.append(contribution)
            if not _sum_is_smaller(self.singles, self.n_due):
                return
            self.fold = Accumulator(self.experiment.algorithm.update, self.experiment.fixed_point)
            waiting, self.singles = self.singles, []
        else:
            waiting = [contribution]
        for item in waiting:
            self.fold.add(item.update, item.n_samples, checked=True)  # where it was made

    def uploads(self) -> Uploads[Any]:
        """What goes up now."""
        if self.fold is None:
            return Uploads(contributions=() if self.hold else tuple(self.singles))
        return Uploads(partial_sum=self.fold.result(), link_bytes=self.link_bytes)

    def answer(self) -> VisitAnswer[Any, Any]:
        """The answer to the order."""
        return VisitAnswer(outcomes=tuple(self.outcomes), uploads=self.uploads())


def _sum_is_smaller(singles: list[Contribution[Any]], n_due: int) -> bool:
    """Whether the sum of all that are due, or came, has fewer bytes than they have."""
    n = max(n_due, len(singles))
    sizes = [_mean_bytes(item.update, n) for item in singles]
    return sum(own_bytes for own_bytes, _ in sizes) / len(sizes) * n > sizes[0][1]


def _mean_bytes(update: Record, n: int) -> tuple[int, int]:
    """Bytes of what is averaged of an update, and of the sum of n such; per position a sum has a weight beside it."""
    own_bytes = sum_bytes = 0
    for name in type(update).model_fields:
        how, value = rule_of(type(update), name), getattr(update, name)
        if isinstance(how, Mean) and how.per_position and isinstance(value, dict):
            for key, mask in getattr(update, how.per_position).items():
                own_bytes += n_bytes(mask, value[key].element_size())
                sum_bytes += 16 * min(mask.numel(), n * int(mask.count_nonzero()))
        elif isinstance(how, Mean):
            elements = list(_tensors_of(value))
            own_bytes += sum(carried_bytes(tensor) for tensor in elements)
            sum_bytes += sum(8 * tensor.numel() for tensor in elements)
    return own_bytes, sum_bytes


def _tensors_of(value: Any) -> Any:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_of(item)
