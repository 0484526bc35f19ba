"""When a run ends before its last round, and the samples by which its best round is chosen."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from shared.core.bounds import MAX_REAL
from shared.core.records import LEFT_OUT, Record
from shared.spec.fields import LARGEST_COUNT

LOSS = "loss"
"""The name of the loss where a metric is named; a lower one is better."""


class Validation(Record):
    """Samples that neither train nor test a model: by them it is decided which round's model is the best.

    Attributes:
        fraction: their share, drawn by seed.
        of: `server`: of the data set's test samples; `clients`: of the training samples of each client.
    """

    fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    of: Literal["server", "clients"] = "server"


class Stop(Record):
    """When a run ends before its last round; of several conditions the first that holds.

    Attributes:
        accuracy: the run's headline accuracy, in `times` evaluations one after another.
        metric: label of the metric that has to reach `target`, or to get better within `patience`; `loss` is one, too.
            None means the run's headline metric.
        target: value that it has to reach, from below or from above as its direction says, in place of `accuracy`.
        times: number of evaluations in a row that reach `accuracy` or `target`.
        patience: number of evaluations in a row after which a run ends whose metric has not become better.
        min_delta: by how much more than this a value has to be better than the best before.
        on: the samples on which the metric is measured; None means the validation part, in a run without one the test
            set. A round is chosen on the test set only where this says `test`.
        simulated_s: simulated seconds of the run.
        bytes: link bytes of the run, up and down.
        joules: energy of all tasks of the run.
    """

    accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    metric: Annotated[Annotated[str, Field(min_length=1, max_length=100)] | None, LEFT_OUT] = None
    target: Annotated[Annotated[float, Field(ge=-MAX_REAL, le=MAX_REAL)] | None, LEFT_OUT] = None
    times: Annotated[int, Field(ge=1, le=1000)] = 1
    patience: Annotated[Annotated[int, Field(ge=1, le=LARGEST_COUNT)] | None, LEFT_OUT] = None
    min_delta: Annotated[float, Field(ge=0, le=MAX_REAL, exclude_if=lambda value: value == 0)] = 0.0
    on: Annotated[Literal["validation", "test"] | None, LEFT_OUT] = None
    simulated_s: Annotated[float, Field(gt=0, le=1e12)] | None = None
    bytes: Annotated[int, Field(gt=0, le=2**63 - 1)] | None = None
    joules: Annotated[float, Field(gt=0, le=1e15)] | None = None

    @model_validator(mode="after")
    def _has_a_condition(self) -> Stop:
        limits = (self.accuracy, self.target, self.patience, self.simulated_s, self.bytes, self.joules)
        if all(limit is None for limit in limits):
            raise ValueError("at least one of accuracy, target, patience, simulated_s, bytes and joules is needed")
        if self.accuracy is not None and self.target is not None:
            raise ValueError("accuracy and target: a run has one target")
        if self.metric is not None and self.target is None and self.patience is None:
            raise ValueError("metric needs target, the value that it has to reach, or patience")
        if self.times > 1 and not self.has_target:
            raise ValueError("times counts evaluations that reach accuracy or target, which is missing")
        if self.min_delta and self.patience is None:
            raise ValueError("min_delta needs patience: it is by how much a value has to be better")
        if self.on is not None and not self.by_metric:
            raise ValueError("on needs accuracy, target or patience: it says on which samples a metric is measured")
        return self

    @property
    def has_target(self) -> bool:
        """Whether a value of a metric may end the run."""
        return self.accuracy is not None or self.target is not None

    @property
    def by_metric(self) -> bool:
        """Whether values of a metric may end the run."""
        return self.has_target or self.patience is not None


def fault_of(stop: Stop | None, validation: Validation | None) -> str | None:
    """Returns why a run cannot be ended on the samples that it has, None if it can; begins with the field at fault.

    A round is never chosen on the test set without a word.
    """
    if stop is None or validation is not None or stop.on == "test":
        return None
    part = "validation: {fraction: 0.1, of: server} or {of: clients}"
    if stop.on == "validation":
        return f"stop.on: validation needs a validation part, such as {part}"
    if stop.patience is None:
        return None
    why = f"stop.patience needs samples by which rounds are compared, such as {part}"
    return f"{why}; stop.on: test compares them on the test set, and the record says that the round was chosen on it"
