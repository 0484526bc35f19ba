"""Runs side by side, from their results folders alone: accuracy against rounds, simulated time and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.core.errors import UnknownName
from shared.core.scores import Spread
from shared.federation.registry import load_algorithm
from shared.results.folder import read_rounds, read_run
from shared.results.spec_differences import differing, flat, labels
from shared.run_records.rounds import RoundInfo
from shared.run_records.runs import FINAL, RunInfo

_CLIENTS = "mean over clients"
_LISTED = 5


@dataclass(frozen=True)
class Point:
    """An evaluation with the simulated seconds and the bytes sent up (on both links) since the run began."""

    round_no: int
    simulated_s: float
    bytes_up: int
    accuracy: float


@dataclass(frozen=True)
class LearningCurve:
    """One run of a comparison.

    Attributes:
        info: the run as its folder shows it.
        points: its evaluations, in order.
        measure: which accuracy the points show, as `RunInfo.accuracy_of` says it.
        label: a short name, unique in the comparison.
        differs: by spec key in which the runs differ, this run's value; None if its spec lacks the key.
    """

    info: RunInfo
    points: tuple[Point, ...]
    measure: str
    label: str
    differs: dict[str, Any]

    @property
    def accuracy(self) -> float | None:
        """The run's headline accuracy; before it has one, that of its newest evaluation."""
        if self.info.accuracy is not None:
            return self.info.accuracy
        return self.points[-1].accuracy if self.points else None

    @property
    def clients(self) -> Spread | None:
        """The spread over clients at the end: of local models if the run is judged by these, else of received ones."""
        found = self.info.clients
        own = found.get("own") if self.measure == _CLIENTS else None
        return own or found.get("received")

    def reached(self, target: float | None) -> Point | None:
        """The first evaluation with at least the target accuracy."""
        if target is None:
            return None
        return next((point for point in self.points if point.accuracy >= target), None)


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        curves: one for each run, in the order requested.
        target: the accuracy to reach; None if no run has been evaluated.
        remarks: reasons why figures are not comparable or not final.
    """

    curves: tuple[LearningCurve, ...]
    target: float | None
    remarks: tuple[str, ...]


def compare(folders: Sequence[Path], target: float | None = None) -> Comparison:
    """Compares runs.

    Args:
        folders: results folders, `runs/<id>`.
        target: an accuracy from 0 to 1; None means the highest that all evaluated runs reach.

    Raises:
        NotFound: a folder holds no run.
    """
    infos = [read_run(folder) for folder in folders]
    specs = [flat(info.spec) for info in infos]
    keys = differing(specs)
    curves = []
    for folder, info, spec, label in zip(folders, infos, specs, labels(infos), strict=True):
        measure = _measure(info)
        points = _points(read_rounds(folder), measure)
        curves.append(LearningCurve(info, points, measure, label, {key: spec.get(key) for key in keys}))
    if target is None:
        tops = [max(point.accuracy for point in curve.points) for curve in curves if curve.points]
        target = min(tops, default=None)
    return Comparison(tuple(curves), target, tuple(_remarks(curves)))


def _measure(info: RunInfo) -> str:
    """The accuracy by which a run is judged: known from a completed run itself, before that from its algorithm."""
    if info.status == "completed":
        return info.accuracy_of
    try:
        return load_algorithm(info.algorithm).headline
    except UnknownName:  # a plug-in that is not installed here
        return info.accuracy_of


def _points(rounds: Sequence[RoundInfo], measure: str) -> tuple[Point, ...]:
    """The evaluations of one kind, each with the totals up to it."""
    points, simulated_s, bytes_up = [], 0.0, 0
    for row in rounds:
        if row.kind != "train":  # the final evaluation is not part of a run's costs
            continue
        simulated_s += row.simulated_s
        bytes_up += row.bytes_up
        accuracy = row.client_accuracy if measure == _CLIENTS else row.accuracy
        if accuracy is not None:
            points.append(Point(row.round_no, simulated_s, bytes_up, accuracy))
    return tuple(points)


def _remarks(curves: Sequence[LearningCurve]) -> list[str]:
    found, infos = [], [curve.info for curve in curves]
    tests = dict.fromkeys(map(_test_set, infos))
    if len(tests) > 1:
        found.append(f"Different test sets ({'; '.join(tests)}): accuracies are not comparable.")
    measured = [curve for curve in curves if curve.points]
    measures = dict.fromkeys(curve.measure for curve in measured)
    if len(measures) > 1:
        found.append(f"Different accuracy measures ({'; '.join(measures)}): not comparable.")
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


def _listed(words: Sequence[str]) -> str:
    """Items on one line; of many, the first ones and the number of the rest."""
    more = f"; {len(words) - _LISTED} more" if len(words) > _LISTED else ""
    return "; ".join(words[:_LISTED]) + more


def _test_set(info: RunInfo) -> str:
    data = info.spec.data
    return data.name if data.n_test is None else f"{data.n_test} of {data.name}"
