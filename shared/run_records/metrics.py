"""What the record of a run says of its metrics, so that readers need no metric's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Literal, Protocol

from pydantic import Field

from shared.core.bounds import Label
from shared.core.formatting import number, percent
from shared.core.records import Record
from shared.core.scores import ClassCounts

Values = Annotated[dict[str, float], Field(exclude_if=lambda values: not values)]
"""Values of metrics by label, left out of a record that has none. The accuracy has a field of its own."""

Tables = Annotated[dict[str, ClassCounts], Field(exclude_if=lambda tables: not tables)]
"""What a client's last evaluations count by class: of the model `received`, its `own`, `own_on_NAME`."""


class MetricInfo(Record):
    """A metric as records show it.

    Attributes:
        label: its key in scores: its name, with parameters that differ from the defaults.
        higher_is_better: its direction.
        unit: `share` for values that are shown in percent, otherwise `number`.
    """

    label: Label
    higher_is_better: bool = True
    unit: Literal["share", "number"] = "number"

    def text(self, value: float | None) -> str:
        """Returns a value for people, a dash for None."""
        return percent(value) if self.unit == "share" else number(value)

    def reached(self, value: float, target: float) -> bool:
        """Whether a value is at least as good as a target."""
        return value >= target if self.higher_is_better else value <= target

    @property
    def best(self) -> Callable[[Iterable[float]], float]:
        """Returns the best of values."""
        return max if self.higher_is_better else min

    @property
    def worst(self) -> Callable[[Iterable[float]], float]:
        """Returns the worst of values."""
        return min if self.higher_is_better else max


class ScoredRow(Protocol):
    """A row of a table with the scores of the model received and of the client's own."""

    @property
    def received_accuracy(self) -> float | None: ...
    @property
    def own_accuracy(self) -> float | None: ...
    @property
    def received_metrics(self) -> Values: ...
    @property
    def own_metrics(self) -> Values: ...


def value_in(row: ScoredRow, which: Literal["received", "own"], metric: MetricInfo) -> float | None:
    """Returns a metric's value of the model received or of the client's own."""
    if metric.label == ACCURACY.label:
        return row.received_accuracy if which == "received" else row.own_accuracy
    return (row.received_metrics if which == "received" else row.own_metrics).get(metric.label)


MODELS = {"received": "received model", "own": "own model after training"}
"""The models that a client tests, as people are shown them."""
ACCURACY = MetricInfo(label="accuracy", unit="share")
"""The only metric of runs that earlier versions recorded."""
LOSS = MetricInfo(label="loss", higher_is_better=False)
"""The loss, where a metric is named."""


def metric_named(label: str | None, metrics: Sequence[MetricInfo]) -> MetricInfo:
    """Returns the metric of this label, or the loss; of none the first, the headline."""
    known = {LOSS.label: LOSS} | {metric.label: metric for metric in metrics}
    return known.get(label or "", metrics[0])
