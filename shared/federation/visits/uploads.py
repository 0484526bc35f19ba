"""What an agent sends up after its visits: single updates or their exact sum, and the bytes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from shared.core.records import Record
from shared.core.tensor_records import Tensor
from shared.core.update_annotations import Mean
from shared.federation.aggregation import Accumulator, rule_of
from shared.federation.experiment import Experiment
from shared.federation.messages import Contribution, Outcome, UploadAnswer, Uploads, Visit, VisitAnswer
from shared.wire import codec
from shared.wire.compression import carried_bytes
from shared.wire.sparse import n_bytes


@dataclass
class FinishedVisit:
    """A finished visit: its outcome, its contribution if there is one, and the wall seconds spent on testing models."""

    outcome: Outcome[Any]
    contribution: Contribution[Any] | None = None
    testing_s: float = 0.0


def answer_bytes(outcome: Outcome[Any], contribution: Contribution[Any] | None) -> int:
    """Bytes of a visit's answer if its seat sent it alone: what the modelled link carries."""
    uploads: Uploads[Any] = Uploads(contributions=(contribution,) if contribution else ())
    return codec.size(VisitAnswer(outcomes=(outcome,), uploads=uploads))


class _AnswerSizes:
    """The bytes of answers with one update each; what updates with equal tensors add to one is measured once."""

    def __init__(self) -> None:
        self._without_outcome: dict[Any, codec.Size] = {}

    def of(self, outcome: Outcome[Any], contribution: Contribution[Any]) -> int:
        """As `answer_bytes`."""
        layout, text = _layout(contribution), codec.inner_text(outcome)
        if layout is None or text is None:
            return answer_bytes(outcome, contribution)
        if layout not in self._without_outcome:
            answer: VisitAnswer[Any, Any] = VisitAnswer(
                outcomes=(outcome,), uploads=Uploads(contributions=(contribution,))
            )
            whole = codec.measured(answer)
            self._without_outcome[layout] = whole._replace(text=whole.text - text)
        rest = self._without_outcome[layout]
        return rest._replace(text=rest.text + text).n_bytes


def _layout(contribution: Contribution[Any]) -> tuple[Any, ...] | None:
    """What decides the size of an update of maps of whole tensors that share no memory; None if it is another one."""
    update, parts, addresses = contribution.update, list[tuple[Any, ...]](), list[int]()
    for name, value in vars(update).items():
        if value is None or (isinstance(value, dict) and not value):
            parts.append((name, value is None))
            continue
        if not isinstance(value, dict) or not all(type(tensor) is torch.Tensor for tensor in value.values()):
            return None
        parts += [(name, key, tensor.shape, tensor.dtype) for key, tensor in value.items()]
        addresses += [tensor.data_ptr() for tensor in value.values()]
    if len(set(addresses)) < len(addresses) or codec.leaves_out_values(type(update)):
        return None
    return type(update), len(str(contribution.seat)), len(str(contribution.n_samples)), tuple(parts)


def held_bytes(outcome: Outcome[Any], contribution: Contribution[Any], *, reports: bool) -> int:
    """Bytes of the answer that brings a held update, if its seat sends it alone.

    With reports that is the answer to the edge's verdict. Without, only our services hold the update back; in the
    modelled system it is part of the visit's answer.
    """
    return upload_bytes(contribution) if reports else answer_bytes(outcome.replace(held_bytes=0), contribution)


def upload_bytes(contribution: Contribution[Any]) -> int:
    """Bytes of an admitted update if its seat sent it alone, after its report."""
    return codec.size(UploadAnswer(uploads=Uploads(contributions=(contribution,))))


@dataclass
class UploadBuilder:
    """Collects an agent's finished visits; replaces their updates by the exact sum once that takes fewer bytes.

    With `hold` the updates stay single: they wait for the edge's verdict. With asynchronous devices they do, too.

    Attributes:
        n_due: number of updates expected. The choice is made for all of them, so that updates whose sum will be
            smaller are added up from the first one and need not be kept.
        singles: the updates that were not added up.
        link_bytes: by seat, the bytes of its answer if it sent it alone.
        accumulator: the sum of the updates, once there is one.
        testing_s: wall seconds spent on testing models; not part of the answer.
    """

    experiment: Experiment
    hold: bool = False
    n_due: int = 0
    outcomes: list[Outcome[Any]] = field(default_factory=list)
    singles: list[Contribution[Any]] = field(default_factory=list)
    link_bytes: dict[int, int] = field(default_factory=dict)
    accumulator: Accumulator | None = None
    testing_s: float = 0.0
    _sizes: _AnswerSizes = field(default_factory=_AnswerSizes, init=False, repr=False)

    def take(self, visit: FinishedVisit) -> None:
        """Adds a finished visit."""
        self.outcomes.append(visit.outcome)
        self.testing_s += visit.testing_s
        contribution = visit.contribution
        if contribution is None:
            return
        if self.hold:
            self.singles.append(contribution)
            return
        self.add(contribution, self._sizes.of(visit.outcome, contribution))

    def add(self, contribution: Contribution[Any], link_bytes: int) -> None:
        """Adds a contribution; `link_bytes` is the size of its seat's answer if sent alone."""
        self.link_bytes[contribution.seat] = link_bytes
        if self.accumulator is None:
            self.singles.append(contribution)
            apart = self.experiment.spec.sync.devices.asynchronous  # each gets a weight of its own when it counts
            if apart or not _sum_is_smaller(self.singles, self.n_due):
                return
            self.accumulator = Accumulator(self.experiment.algorithm.update, self.experiment.fixed_point)
            waiting, self.singles = self.singles, []
        else:
            waiting = [contribution]
        for item in waiting:
            self.accumulator.add(item.update, item.n_samples, checked=True)  # the visit has checked it

    def sort(self, visits: Sequence[Visit]) -> None:
        """Puts what was collected into the order of these visits."""
        place = {visit.seat: place for place, visit in enumerate(visits)}
        self.outcomes.sort(key=lambda outcome: place[outcome.seat])
        self.singles.sort(key=lambda contribution: place[contribution.seat])
        self.link_bytes = {seat: self.link_bytes[seat] for seat in sorted(self.link_bytes, key=place.__getitem__)}

    def uploads(self) -> Uploads[Any]:
        """The updates to send: single ones or their sum; with `hold` none."""
        if self.accumulator is None:
            return Uploads(contributions=() if self.hold else tuple(self.singles))
        return Uploads(partial_sum=self.accumulator.result(), link_bytes=self.link_bytes)

    def answer(self) -> VisitAnswer[Any, Any]:
        """The answer to the order."""
        return VisitAnswer(outcomes=tuple(self.outcomes), uploads=self.uploads())


def _sum_is_smaller(singles: list[Contribution[Any]], n_due: int) -> bool:
    """Whether the sum of all expected updates has fewer bytes than the updates, judged by those that have come."""
    n = max(n_due, len(singles))
    sizes = [_mean_bytes(item.update, n) for item in singles]
    return sum(own_bytes for own_bytes, _ in sizes) / len(sizes) * n > sizes[0][1]


def _mean_bytes(update: Record, n: int) -> tuple[int, int]:
    """Bytes of an update's averaged fields, and of the sum of n such updates (per position, a sum has weights too)."""
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
