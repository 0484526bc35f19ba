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
    """An evaluation, and what had been spent until then: link bytes up of both links, and simulated seconds."""

    round_no: int
    simulated_s: float
    bytes_up: int
    accuracy: float


@dataclass(frozen=True)
class LearningCurve:
    """One run of a comparison.

    Attributes:
        info: the run as its folder shows it.
        points: its evaluations in order, none before the first.
        measure: whose accuracy the points are, in the words of `RunInfo.accuracy_of`.
        label: unique in the comparison.
        differs: its values of the keys in which the specs differ, None where it has no such key.
    """

    info: RunInfo
    points: tuple[Point, ...]
    measure: str
    label: str
    differs: dict[str, Any]

    @property
    def accuracy(self) -> float | None:
        """The run's headline figure; until it has one, its newest evaluation."""
        if self.info.accuracy is not None:
            return self.info.accuracy
        return self.points[-1].accuracy if self.points else None

    @property
    def clients(self) -> Spread | None:
        """How the accuracy spreads over clients at the end: of the global model, or of their own where that counts."""
        found = self.info.clients
        own = found.get("own") if self.measure == _CLIENTS else None
        return own or found.get("received")

    def reached(self, target: float | None) -> Point | None:
        """The first evaluation that is not below the target."""
        if target is None:
            return None
        return next((point for point in self.points if point.accuracy >= target), None)


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Attributes:
        courses: in the order that was asked for.
        target: the accuracy that runs are asked to reach; None if none has been evaluated.
        remarks: what a reader must know before believing the figures.
    """

    curves: tuple[LearningCurve, ...]
    target: float | None
    remarks: tuple[str, ...]


def compare(folders: Sequence[Path], target: float | None = None) -> Comparison:
    """Lay runs side by side.

    Args:
        folders: results folders, `runs/<id>`.
        target: an accuracy from 0 to 1; None = the highest that all evaluated runs reach.

    Raises:
        NotFound: a folder holds no run.
    """
    infos = [read_run(folder) for folder in folders]
    specs = [flat(info.spec) for info in infos]
    keys = differing(specs)
    courses = []
    for folder, info, spec, label in zip(folders, infos, specs, labels(infos), strict=True):
        measure = _measure(info)
        points = _points(read_rounds(folder), measure)
        courses.append(LearningCurve(info, points, measure, label, {key: spec.get(key) for key in keys}))
    if target is None:
        tops = [max(point.accuracy for point in course.points) for course in courses if course.points]
        target = min(tops, default=None)
    return Comparison(tuple(courses), target, tuple(_remarks(courses)))


def _measure(info: RunInfo) -> str:
    """Whose accuracy a run is judged by. Only a complete one says so itself; of others its algorithm knows."""
    if info.status == "completed":
        return info.accuracy_of
    try:
        return load_algorithm(info.algorithm).headline
    except UnknownName:  # a plug-in that is not here
        return info.accuracy_of


def _points(rounds: Sequence[RoundInfo], measure: str) -> tuple[Point, ...]:
    """The evaluations by a measure, with the totals up to each."""
    points, simulated_s, bytes_up = [], 0.0, 0
    for row in rounds:
        if row.kind != "train":  # the evaluation after the last round costs no run anything
            continue
        simulated_s += row.simulated_s
        bytes_up += row.bytes_up
        on_global = (row.evaluation or {}).get("global")
        accuracy = row.client_accuracy if measure == _CLIENTS else on_global.accuracy if on_global else None
        if accuracy is not None:
            points.append(Point(row.round_no, simulated_s, bytes_up, accuracy))
    return tuple(points)


def _remarks(courses: Sequence[LearningCurve]) -> list[str]:
    found, infos = [], [course.info for course in courses]
    tests = dict.fromkeys(map(_test_set, infos))
    if len(tests) > 1:
        found.append(f"different test sets ({'; '.join(tests)}): their accuracies do not compare")
    measured = [course for course in courses if course.points]
    measures = dict.fromkeys(course.measure for course in measured)
    if len(measures) > 1:
        found.append(f"different accuracies ({'; '.join(measures)}): they do not compare")
    steps = sorted({course.info.spec.eval_every for course in measured})
    if len(steps) > 1:
        each = " or ".join(map(str, steps))
        found.append(f"evaluated every {each} rounds: what a run needs to the target is known to its own step")
    going = [
        f"{info.run}: {info.status}, {info.rounds}/{info.num_rounds}" for info in infos if info.status not in FINAL
    ]
    if going:
        found.append(f"not ended, so that these are figures so far ({_listed(going)})")
    unseen = [course.info.run for course in courses if not course.points]
    if unseen:
        found.append(f"without an evaluation, so in no panel and without a say in the target ({_listed(unseen)})")
    return found


def _listed(words: Sequence[str]) -> str:
    """Words on a line; of very many the first and how many more."""
    more = f"; {len(words) - _LISTED} more" if len(words) > _LISTED else ""
    return "; ".join(words[:_LISTED]) + more


def _test_set(info: RunInfo) -> str:
    data = info.spec.data
    return data.name if data.n_test is None else f"{data.n_test} of {data.name}"
