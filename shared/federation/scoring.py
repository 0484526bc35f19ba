"""`Scoring`: the loss that a run's training minimises, and the metrics that its evaluations measure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shared.core.errors import BadInput, UnknownName
from shared.core.formatting import label_of
from shared.core.scores import AnyState, ClassCounts, Score
from shared.federation.registry import load_algorithm, load_local
from shared.run_records.metrics import MetricInfo
from shared.run_records.rounds import Evaluation
from shared.run_records.visits import Scored
from shared.spec.ends import LOSS, Stop, Validation, fault_of
from shared.spec.experiment import ExperimentSpec
from shared.spec.fields import Choice
from shared.training.description import Numbers, Target
from shared.training.loop import CLASSES, LossFunction, WeightOf
from shared.training.losses import DEFAULT_LOSS, LOSS_VALUES, LossOfRun, loss_of_run
from shared.training.metrics import classification
from shared.training.metrics.catalogue import DEFAULT_METRIC, METRIC_VALUES
from shared.training.metrics.metric import Metric, MetricOfRun, changed, metric_of_run, rows_of

ACCURACY = classification.ACCURACY.name


@dataclass(frozen=True)
class Scoring:
    """How a run scores outputs.

    Attributes:
        metrics: the run's metrics; the first is the headline.
        target: what a model is to say of a sample.
        loss: the loss that the spec names; None means the targets' own.
    """

    metrics: tuple[MetricOfRun, ...] = (MetricOfRun(classification.ACCURACY),)
    target: Target = CLASSES
    loss: LossOfRun | None = None

    @property
    def batch_loss(self) -> LossFunction | None:
        """The mean loss of a batch's predictions, which training minimises; None means that of the target."""
        return None if self.loss is None else self.loss.mean

    def loss_sum(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the sum of the losses of a batch's predictions."""
        return (self.target.loss_sum if self.loss is None else self.loss.sum)(outputs, targets)

    @property
    def weight_of(self) -> WeightOf | None:
        """The weight of a batch in the mean loss; None where each prediction counts once."""
        return self.loss.weight if self.loss is not None and self.loss.weighted else None

    @property
    def headline(self) -> MetricOfRun:
        """The metric by which a run is judged."""
        return self.metrics[0]

    @property
    def infos(self) -> tuple[MetricInfo, ...]:
        """The metrics as records show them; a table has no value to show."""
        return tuple(
            MetricInfo(label=each.label, higher_is_better=each.metric.higher_is_better, unit=each.metric.unit)
            for each in self.metrics
            if each.metric.has_value
        )

    @property
    def further(self) -> dict[str, MetricOfRun]:
        """By label, the metrics whose states scores hold; the counts of each score are the accuracy's state."""
        return {each.label: each for each in self.metrics if each.label != ACCURACY}

    def states(self, outputs: Tensor, targets: Tensor) -> dict[str, AnyState]:
        """Returns the states of a batch by label; outputs are those of the model, targets those of the data."""
        if not self.further:
            return {}
        outputs, targets = rows_of(self.target, outputs.cpu().to(torch.float64), targets.cpu())
        targets = targets.to(torch.float64) if targets.is_floating_point() else targets
        if isinstance(self.target, Numbers):
            outputs, targets = self.target.in_unit(outputs), self.target.in_unit(targets)
        return {label: each.state(outputs, targets) for label, each in self.further.items()}

    # ---- scores as values

    def value(self, score: Score | None, metric: MetricOfRun | None = None) -> float | None:
        """Returns a metric's value of a score, by default the headline's; None without predictions."""
        metric = metric or self.headline
        if score is None:
            return None
        if metric.label == ACCURACY:
            return score.accuracy
        state = score.states.get(metric.label)
        value = None if state is None else metric.value(state)
        return value if value is not None and math.isfinite(value) else None

    def accuracy(self, score: Score) -> float | None:
        """Returns the accuracy of a score, None where targets are no classes."""
        return None if self.target.kind == "numbers" else score.accuracy

    def further_values(self, score: Score) -> dict[str, float]:
        """Returns the values of all metrics but the accuracy, by label, as far as they have one."""
        found = {label: self.value(score, each) for label, each in self.further.items()}
        return {label: value for label, value in found.items() if value is not None}

    def by_class(self, score: Score | None) -> ClassCounts | None:
        """Returns what a score counts by class: of several metrics that do, one with a matrix if there is any."""
        states = {} if score is None else score.states
        counts = (self.further[label].counts(state) for label, state in states.items())
        return max(filter(None, counts), key=lambda each: len(each.confusion), default=None)

    def row(self, scored: Scored, *, by_class: bool = False) -> dict[str, Any]:
        """Returns the scores of a visit or an edge's round, by the names of their fields in a row.

        Args:
            scored: the visit, or the edge's round.
            by_class: whether the row also has what the scores count by class.
        """
        found: dict[str, Any] = {}
        for which, score in (("received", scored.received), ("own", scored.own)):
            found[f"{which}_accuracy"] = self.accuracy(score) if score else None
            found[f"{which}_loss"] = score.loss if score else None
            found[f"{which}_metrics"] = self.further_values(score) if score else {}
        on = {name: self.value(score) for name, score in scored.own_on.items()}
        found["own_on"] = {name: value for name, value in on.items() if value is not None}
        return {**found, "by_class": self._tables(scored)} if by_class else found

    def _tables(self, scored: Scored) -> dict[str, ClassCounts]:
        """What the scores of a visit or an edge's round count by class, by their names."""
        scores = {"received": scored.received, "own": scored.own}
        scores |= {f"own_on_{name}": score for name, score in scored.own_on.items()}
        tables = {name: self.by_class(score) for name, score in scores.items()}
        return {name: table for name, table in tables.items() if table is not None}

    def evaluation(self, score: Score, *, by_class: bool = False) -> Evaluation:
        """Returns a score as the API shows it; `by_class`: with what it counts by class."""
        errors = {label: self.further[label].error(state) for label, state in score.states.items()}
        return Evaluation(
            n=score.n,
            accuracy=self.accuracy(score),
            loss=score.loss,
            metrics=self.further_values(score),
            errors={label: error for label, error in errors.items() if error},
            by_class=self.by_class(score) if by_class else None,
        )

    # ---- checks

    def fault(self, name: str, score: Score, most: int) -> str | None:
        """Returns why a score that another process sent is not possible, None if it is.

        Args:
            name: of the score in the answer; `train` for the score of a training, which has no states.
            score: with the states of the run's metrics.
            most: samples that it can be of.
        """
        if score.n > (possible := most * self.target.per_sample):
            return f"a score `{name}` of {score.n} predictions, at most {possible} are possible"
        if score.n_correct > score.n:
            return f"a score `{name}` with {score.n_correct} of {score.n} predictions correct"
        if (score.loss_weight is None) == (self.weight_of is not None):
            return f"a score `{name}` {'without' if score.loss_weight is None else 'with'} the weight of its losses"
        due = sorted(self.further) if score.n and name != "train" else []
        if sorted(score.states) != due:
            return f"a score `{name}` with states of {sorted(score.states)[:MAX_NAMED]}, not of {due}"
        faults = (self.further[label].fault(state, score.n) for label, state in score.states.items())
        found = next(filter(None, faults), None)
        return f"a score `{name}` with {found}" if found else None


MAX_NAMED = 5
"""Labels that an error names."""


def scoring_of(spec: ExperimentSpec, target: Target, classes: Sequence[str] = ()) -> Scoring:
    """How a spec's run scores outputs.

    Args:
        spec: of the run.
        target: of its data.
        classes: names of their classes; empty if they have none.

    Raises:
        UnknownName, BadInput: naming the field: a name is not known, a parameter is wrong, a metric or the loss is not
            defined for such targets, or the stop is by a metric that the run does not measure.
    """
    chosen = spec.metrics or (Choice(name=DEFAULT_METRIC[target.kind]),)
    made = [
        metric_of_run(METRIC_VALUES.get(each.name, f"metrics.{at}"), each.params, target, f"metrics.{at}", classes)
        for at, each in enumerate(chosen)
    ]
    labels = [each.label for each in made]
    for at, label in enumerate(labels):
        if label in labels[:at]:
            raise BadInput(f"metrics.{at}: {label} comes twice", field=f"metrics.{at}")
    _check_headline(made[0].metric)
    scoring = Scoring(tuple(made), target, _loss_of(spec, target))
    check_stop(spec.stop, [each.label for each in made if each.metric.has_value], spec.validation)
    return scoring


def _check_headline(metric: Metric) -> None:
    if not metric.has_value:
        why = f"{metric.name} is a table, which has no value by which runs are judged"
        raise BadInput(f"metrics.0: {why}: name another metric first, such as accuracy", field="metrics.0")


def check_stop(stop: Stop | None, labels: Sequence[str], validation: Validation | None) -> None:
    """Checks that the metric which may end a run is one that it measures, on samples that it has.

    Args:
        stop: of the spec, or of a run that goes on.
        labels: of the run's metrics, the headline first.
        validation: of the spec.

    Raises:
        UnknownName, BadInput: naming the field.
    """
    if stop is None:
        return
    if (fault := fault_of(stop, validation)) is not None:
        raise BadInput(fault, field=fault.split(maxsplit=1)[0].rstrip(":"))
    if stop.metric is not None and stop.metric not in (*labels, LOSS):
        raise UnknownName("metric of this run", stop.metric, list(labels), field="stop.metric")
    if stop.accuracy is not None and labels[0] != ACCURACY:
        why = f"the headline metric of the run is {labels[0]}: stop.target is a value of that"
        raise BadInput(f"stop.accuracy: {why}", field="stop.accuracy")


def check_scoring(spec: ExperimentSpec) -> None:
    """Checks loss and metrics of a spec as far as that needs no data: names, parameters, and what goes with them.

    Raises:
        UnknownName, BadInput: naming the field.
    """
    found = [METRIC_VALUES.get(each.name, f"metrics.{at}") for at, each in enumerate(spec.metrics)]
    labels = [
        label_of(each.name, changed(metric.parse(each.params, f"metrics.{at}.params")))
        for at, (each, metric) in enumerate(zip(spec.metrics, found, strict=True))
    ]
    if labels:
        _check_headline(found[0])
        valued = [label for label, metric in zip(labels, found, strict=True) if metric.has_value]
        check_stop(spec.stop, valued, spec.validation)
    _check_validation(spec)
    if spec.loss is None:
        return
    params = LOSS_VALUES.get(spec.loss.name).parse(spec.loss.params, "loss.params")
    if spec.loss.name in DEFAULT_LOSS.values() and not changed(params):  # that of the targets, if it fits them
        return
    own, (local, _) = load_algorithm(spec.algorithm.name), load_local(spec)
    if local.objective is not None or own.own_objective(own.parse_params(spec.algorithm.params)):
        name = local.name if local.objective is not None else own.name
        raise BadInput(f"loss: {name} has a local objective of its own, which names its loss", field="loss")
    if spec.vectorised is not None:
        raise BadInput("vectorised: many devices at once minimise the targets' own loss only", field="vectorised")


def _check_validation(spec: ExperimentSpec) -> None:
    """Checks that rounds can be compared: by the loss, or on a validation part, where one model is judged."""
    algorithm = load_algorithm(spec.algorithm.name)
    if algorithm.headline == "global model":
        return
    why = f"{algorithm.name} is judged by its clients' own models, each on its own test set"
    if spec.validation is not None:
        raise BadInput(f"validation: {why}: there is no one model to choose", field="validation")
    if spec.stop is not None and spec.stop.metric == LOSS:
        raise BadInput(f"stop.metric: {why}: name a metric of the run", field="stop.metric")


def _loss_of(spec: ExperimentSpec, target: Target) -> LossOfRun | None:
    """The loss that a spec names, None for the targets' own.

    Raises:
        UnknownName, BadInput: it is not known, a parameter is wrong, or it is not defined for such targets.
    """
    if spec.loss is None:
        return None
    made = loss_of_run(LOSS_VALUES.get(spec.loss.name), spec.loss.params, target)
    is_own = made.loss.name == DEFAULT_LOSS[target.kind] and not changed(made.params)
    return None if is_own else made
