"""What is recorded of one task of one device in one round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Protocol

from pydantic import AfterValidator, Field

from shared.core.bounds import Amount, Count, Detail, Figures, Label, Real
from shared.core.number_sets import EMPTY, NumberSet
from shared.core.records import Record
from shared.core.scores import Score
from shared.core.validation import visible
from shared.run_records.groups import GroupCount, GroupNames
from shared.run_records.metrics import Tables, Values

SIMULATED_LOSSES = frozenset({"unavailable", "busy", "dropped", "left_out"})
"""Reasons of failures that follow from the spec; such a task counts on neither side of a quorum."""
ENDS = ("used", "late", "surplus", "refused", "dropped", "failed", "no update", "only collected", "only tested")
"""How a task of its own round may end: each task ends in one of these ways, so that their counts add up."""
USED_LATE = "used late"
"""The end of a record of an earlier round's task, whose update was used late; it is no task of this round."""
PARTS = (("download", "down_s"), ("compute", "compute_s"), ("wait", "wait_s"), ("upload", "up_s"))
"""What a task spends its simulated time on, each with its field."""
_ENDS = {"evaluated": "only tested", "collected": "only collected", "idle": "no update", "used_late": USED_LATE}
VisibleLabel = Annotated[Label, AfterValidator(visible)]


def end_of(outcome: str, reason: str | None) -> str:
    """Return how a task ended, as people are shown it: one of `ENDS`, or `USED_LATE`.

    A task that a deadline broke off is late, on the simulated clock (where it is refused) and on the real one.
    """
    if reason == "late" and outcome in ("refused", "failed"):
        return "late"
    if (outcome, reason) in (("refused", "surplus"), ("failed", "dropped")):
        return str(reason)
    return _ENDS.get(outcome, outcome)


class FailureInfo(Record):
    """A lost contribution and why: `reason` is one of a fixed set, `detail` a sentence for people.

    Where a whole edge was lost, `seats` are those whose contributions were lost with it.
    """

    seat: int | None = None
    edge: str | None = None
    seats: NumberSet = EMPTY
    reason: Label
    detail: Detail

    @property
    def n_lost(self) -> int:
        """How many contributions were lost."""
        return len(self.seats) or 1


class VisitFields(Record):
    """What one device did in one task; seconds are simulated.

    Attributes:
        outcome: `used`, `used_late`, `refused`, `failed`, `evaluated`, `collected` or `idle`. A late update has a
            record of its own in the round that uses it (`used_late`).
        label: the algorithm's own label of the client in this task, such as a class.
        work_share: the part of the work requested by the algorithm that the device was given (`partial_work`).
        report_bytes: the part of `up_bytes` sent before the edge admitted or refused the update.
        moved_bytes: the part of `down_bytes` that is samples which the device does not hold.
        begin_s: when the dispatch began, counted from the start of the round; below 0 if in an earlier round.
        wait_s: from the arrival of the device's report to the edge's decision; or for its link, on which samples go up.
        staleness: versions that the edge's model was ahead of the one that the task trained, when its update counted.
        staleness_s: from the dispatch until the update counted.
        simulated_s: the sum of `down_s`, `compute_s`, `wait_s` and `up_s`.
        predicted_s: the `simulated_s` that the device's digital twin predicted.
        measured_s: with `clock: real` only: wall seconds from the edge's orders to their answers. Everything else
            that is sent is the same in every repetition of a run.
        fresh_state: the client began without the state of its last task, although it had one.
        figures: the algorithm's own figures.
    """

    seat: Count
    edge_round: Count = 0
    wave: Count = 0
    outcome: Label
    reason: Detail | None = None
    label: VisibleLabel | None = None
    n_samples: Count = 0
    work_share: Annotated[float, Field(ge=0, le=1)] = 1.0
    down_bytes: Count = 0
    up_bytes: Count = 0
    report_bytes: Count = 0
    moved_bytes: Count = 0
    begin_s: Real = 0.0
    down_s: Amount = 0.0
    compute_s: Amount = 0.0
    wait_s: Amount = 0.0
    up_s: Amount = 0.0
    simulated_s: Amount = 0.0
    predicted_s: Amount | None = None
    measured_s: Amount | None = None
    energy_j: Amount = 0.0
    staleness: Count = 0
    staleness_s: Amount = 0.0
    fresh_state: bool = False
    figures: Figures = Field(default_factory=dict)


_SHARED = tuple(VisitFields.model_fields)


class VisitRecord(VisitFields):
    """A task as an edge reports it: with counts that add up over tasks.

    Attributes:
        train: of the training batches.
        received: of the model received, on the device's own test set.
        own: of the device's own model, on its own test set.
        own_on: of the device's own model, on each test set of `test_on`.
    """

    train: Score | None = None
    received: Score | None = None
    own: Score | None = None
    own_on: dict[str, Score] = Field(default_factory=dict)


class VisitRow(VisitFields):
    """A task as the API and results folders show it: with its edge, agent and profile, and with ratios for scores.

    Attributes:
        profile: the profile that the device had in this round.
        own_on: the headline metric's values of the device's own model on the test sets of `test_on`.
        received_metrics, own_metrics: values of the run's further metrics, by label.
        groups: names of the groups of the device's samples, at most 10 of `n_groups`.
        n_test: predictions on which the received model was tested, one a sample unless targets are sequences.
    """

    edge: str
    agent: str | None = None
    profile: str | None = None
    train_loss: float | None = None
    received_accuracy: float | None = None
    received_loss: float | None = None
    own_accuracy: float | None = None
    own_loss: float | None = None
    own_on: dict[str, float] = Field(default_factory=dict)
    received_metrics: Values = Field(default_factory=dict)
    own_metrics: Values = Field(default_factory=dict)
    by_class: Tables = Field(default_factory=dict)
    n_test: int = 0
    groups: GroupNames = ()
    n_groups: GroupCount = 0

    @classmethod
    def of(cls, visit: VisitRecord, more: Mapping[str, Any], *, edge: str, agent: str | None, profile: str) -> VisitRow:
        """The row of a task that an edge has reported; `more`: its scores and groups as the fields of a row."""
        fields = vars(visit)
        return cls(
            **{name: fields[name] for name in _SHARED},
            edge=edge,
            agent=agent,
            profile=profile,
            train_loss=visit.train.loss if visit.train else None,
            n_test=visit.received.n if visit.received else 0,
            **more,
        )


class Scored(Protocol):
    """A task or an edge's round, with the scores of the model received and of the client's own."""

    @property
    def received(self) -> Score | None: ...
    @property
    def own(self) -> Score | None: ...
    @property
    def own_on(self) -> dict[str, Score]: ...
