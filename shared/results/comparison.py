"""Runs side by side, from their results folders alone: a metric against rounds, simulated time and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.core.errors import BadInput, UnknownName
from shared.core.scores import Spread
from shared.results.folder import read_rounds, read_run
from shared.results.spec_differences import differing, flat, labels
from shared.run_records.metrics import ACCURACY, MetricInfo
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import FINAL, RunInfo

_CLIENTS = "mean over clients"
_LISTED = 5


@dataclass(frozen=True)
class Point:
    """An evaluation with the simulated and wall seconds and the bytes sent up (on both links) since the run began."""

    round_no: int
    simulated_s: float
    bytes_up: int
    value: float
    wall_s: float = 0.0


@dataclass(frozen=True)
class LearningCurve:
    """One run of a comparison.

    Attributes:
        info: the run as its folder shows it.
        metric: what the points show.
        points: its evaluations, in order.
        measure: of which model the points are, as `RunInfo.accuracy_of` says it.
        own: whether its clients use models of their own; else they use the global model that they receive.
        label: a short name, unique in the comparison.
        differs: by spec key in which the runs differ, this run's value; None if its spec lacks the key.
    """

    info: RunInfo
    metric: MetricInfo
    points: tuple[Point, ...]
    measure: str
    own: bool
    label: str
    differs: dict[str, Any]

    @property
    def value(self) -> float | None:
        """The run's value of the metric; before it has one, that of its newest evaluation."""
        spread = self.clients
        at_clients = self.measure == _CLIENTS and not self.own
        value = (spread.mean if spread else None) if at_clients else self.info.value(self.metric)
        return value if value is not None or not self.points else self.points[-1].value

    @property
    def clients(self) -> Spread | None:
        """The spread over clients at the end, of the model that each of them uses."""
        return self.info.spread_of_used(self.metric, own=self.own)

    def reached(self, target: float | None) -> Point | None:
        """The first evaluation that is at least as good as the target."""
        if target is None:
            return None
        return next((point for point in self.points if self.metric.reached(point.value, target)), None)


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        curves: one for each run, in the order requested.
        metric: by which they are compared.
        target: the value to reach; None if no run has been evaluated.
        remarks: reasons why figures are not comparable or not final.
    """

    curves: tuple[LearningCurve, ...]
    metric: MetricInfo
    target: float | None
    remarks: tuple[str, ...]


def compare(
    folders: Sequence[Path], target: float | None = None, metric: str | None = None, *, clients: bool = False
) -> Comparison:
    """Compares runs.

    Args:
        folders: results folders, `runs/<id>`.
        target: a value of the metric; None means the best that all evaluated runs reach.
        metric: label of a metric that at least one run has measured; None means the headline of the first run.
        clients: whether all runs are judged by one measure, the mean over clients of the model that each would use (its
            own, or the global model), on its own test samples; else each by what its algorithm reports.

    Raises:
        NotFound: a folder holds no run.
        UnknownName: no run has measured the metric.
        BadInput: the target is not a possible value of the metric.
    """
    infos = [read_run(folder) for folder in folders]
    specs = [flat(info.spec) for info in infos]
    keys, by = differing(specs), _metric(infos, metric)
    if target is not None and by.unit == "share" and not 0 <= target <= 1:
        raise BadInput(f"target: {target:g} is no value of {by.label}, which is from 0 to 1", field="target")
    curves = []
    for folder, info, spec, label in zip(folders, infos, specs, labels(infos), strict=True):
        reported = _measure(info)
        own, measure = reported == _CLIENTS, _CLIENTS if clients else reported
        points = _points(info, read_rounds(folder), measure, own, by) if by in (ACCURACY, *info.metrics) else ()
        curves.append(LearningCurve(info, by, points, measure, own, label, {key: spec.get(key) for key in keys}))
    tops = [by.best(point.value for point in curve.points) for curve in curves if curve.points]
    if target is None and tops:
        target = by.worst(tops)
    return Comparison(tuple(curves), by, target, tuple(_remarks(curves)))


def _metric(infos: Sequence[RunInfo], label: str | None) -> MetricInfo:
    """The metric by which runs are compared.

    Raises:
        UnknownName: no run has measured the metric of this label.
    """
    if label is None:
        return infos[0].headline if infos else ACCURACY
    known = {metric.label: metric for info in infos for metric in info.metrics}
    if label not in known:
        raise UnknownName("metric", label, sorted(known), field="metric")
    return known[label]


def _measure(info: RunInfo) -> str:
    """The accuracy by which a run is judged: known from a completed run itself, before that from its algorithm."""
    if info.status == "completed":
        return info.accuracy_of
    from shared.federation.registry import load_algorithm  # loads torch

    try:
        return load_algorithm(info.algorithm).headline
    except UnknownName:  # a plug-in that is not installed here
        return info.accuracy_of


def _points(
    info: RunInfo, rounds: Sequence[RoundInfo], measure: str, own: bool, metric: MetricInfo
) -> tuple[Point, ...]:
    """The evaluations of one kind, each with the totals up to it."""

    def value_of(row: RoundInfo) -> float | None:
        if measure != _CLIENTS:
            return row.on_global(metric)
        spread = None if own else info.spreads(metric, row).get("received")
        return info.over_clients(metric, row) if own else spread.mean if spread else None

    points, simulated_s, wall_s, bytes_up = [], 0.0, 0.0, 0
    for row in rounds:
        if row.kind != "train":  # the final evaluation is not part of a run's costs
            continue
        simulated_s += row.simulated_s
        wall_s += row.wall_s
        bytes_up += row.bytes_up
        value = value_of(row)
        if value is not None:
            points.append(Point(row.round_no, simulated_s, bytes_up, value, wall_s))
    return tuple(points)


def _remarks(curves: Sequence[LearningCurve]) -> list[str]:
    found, infos = [], [curve.info for curve in curves]
    tests = dict.fromkeys(map(_test_set, infos))
    if len(tests) > 1:
        found.append(f"Different test sets ({'; '.join(tests)}): {_plural(curves)} are not comparable.")
    headlines = dict.fromkeys(info.headline.label for info in infos)
    if len(headlines) > 1:
        found.append(f"Different headline metrics ({'; '.join(headlines)}): compared by {curves[0].metric.label}.")
    measured = [curve for curve in curves if curve.points]
    measures = dict.fromkeys(curve.measure for curve in measured)
    if len(measures) > 1:
        found.append(f"Different {curves[0].metric.label} measures ({'; '.join(measures)}): not comparable.")
    steps = sorted({(curve.info.spec.eval_every_s or 0.0, curve.info.spec.eval_every) for curve in measured})
    if len(steps) > 1:
        rounds = [str(n) for seconds, n in steps if not seconds]
        each = [f"{' or '.join(rounds)} rounds"] if rounds else []
        each += [f"{seconds:g} simulated seconds" for seconds, _ in steps if seconds]
        found.append(f"Evaluated every {' or '.join(each)}: costs up to the target are only known to that interval.")
    going = [
        f"{info.run}: {info.status}, {info.rounds}/{info.num_rounds}" for info in infos if info.status not in FINAL
    ]
    if going:
        found.append(f"Not finished, figures so far: {_listed(going)}.")
    unseen = [curve.info.run for curve in curves if not curve.points]
    if unseen:
        found.append(f"Not evaluated: left out of charts and target ({_listed(unseen)}).")
    return found


def _plural(curves: Sequence[LearningCurve]) -> str:
    label = curves[0].metric.label
    return "accuracies" if label == ACCURACY.label else f"values of {label}"


def _listed(words: Sequence[str]) -> str:
    """Items on one line; of many, the first ones and the number of the rest."""
    more = f"; {len(words) - _LISTED} more" if len(words) > _LISTED else ""
    return "; ".join(words[:_LISTED]) + more


def _test_set(info: RunInfo) -> str:
    data = info.spec.data
    return data.name if data.n_test is None else f"{data.n_test} of {data.name}"
