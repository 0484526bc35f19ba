"""The last evaluation by class: recall and precision of each class, and the confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

from shared.core.scores import ClassCounts
from shared.plots.history import RunHistory
from shared.plots.picture import Axis, Bars, Cells, Panel, Picture, Series, Value
from shared.run_records.rounds import RoundInfo

MOST_CLASSES = 60
"""Of more classes there is no picture: their names would not be readable. The results folder has their tables."""
_SHOWN = ("global", "clients_own", "clients_received")
"""The evaluations of which the first that there is is shown."""


def last_counts(rounds: Sequence[RoundInfo]) -> tuple[str, ClassCounts] | None:
    """What the newest evaluation counts by class, and its name: of the global model, or of all clients' together."""
    for name in _SHOWN:
        for row in reversed(rounds):
            found = (row.evaluation or {}).get(name)
            if found is not None and found.by_class is not None:
                return name, found.by_class
    return None


def classes(history: RunHistory) -> Picture | None:
    """Recall and precision of each class and the confusion matrix; None of very many classes, or without counts."""
    found = last_counts(history.rounds)
    if found is None or len(found[1].targets) > MOST_CLASSES:
        return None
    name, counts = found
    names = history.info.classes or tuple(map(str, range(len(counts.targets))))
    panels: list[Panel] = [_shares(counts, names)]
    if counts.confusion:
        panels.append(_matrix(counts, names))
    model = "global model" if name == "global" else "all clients together"
    return Picture(
        name="classes", title=f"{history.info.name} ({history.info.algorithm}): classes, {model}", panels=tuple(panels)
    )


def _shares(counts: ClassCounts, names: Sequence[str]) -> Bars:
    """Bars of the classes that have samples; where one is never predicted, its name says so: its precision is none."""
    there = [label for label, n in enumerate(counts.targets) if n]
    recall, precision = ([of(label) for label in there] for of in (counts.recall, counts.precision))
    return Bars(
        x=Axis(label="class"),
        y=Axis(label="share", unit="share", from_zero=True),
        names=tuple(names[label] + " (never predicted)" * (not counts.predictions[label]) for label in there),
        series=(
            Series(name="recall", y=tuple(recall), colour=0),
            Series(name="precision", y=tuple(precision), colour=1),
        ),
    )


def _matrix(counts: ClassCounts, names: Sequence[str]) -> Cells:
    """The share of each class's samples that is predicted as each class; no cell where there is none."""

    def shares(label: int) -> tuple[Value, ...]:
        n = counts.targets[label]
        return tuple(100 * count / n if count else None for count in counts.confusion[label])

    down = [label for label in reversed(range(len(counts.targets))) if counts.targets[label]]
    return Cells(
        x=Axis(label="predicted class"),
        y=Axis(label="class"),
        value=Axis(label="% of the samples of the class", from_zero=True),
        columns=tuple(names),
        rows=tuple(names[label] for label in down),
        values=tuple(map(shares, down)),
    )
