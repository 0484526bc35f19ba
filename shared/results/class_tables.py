"""The tables of a results folder by class: `classes.csv` and `confusion.csv`, of evaluations after the last round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shared.core.scores import ClassCounts
from shared.run_records.rounds import RoundDetail, RoundInfo

CLASSES = "classes.csv"
CONFUSION = "confusion.csv"
CLASSES_HEADER = (
    *("round_no", "kind", "client", "evaluation", "class", "name"),
    *("targets", "predictions", "hits", "recall", "precision", "f1"),
)
Row = tuple[object, ...]


def tables_of(row: RoundInfo) -> Iterator[tuple[str, str, ClassCounts]]:
    """Client, evaluation and counts of each evaluation of a round; the client of those at the cloud is empty."""
    for name, score in (row.evaluation or {}).items():
        if score.by_class is not None:
            yield "", name, score.by_class
    seats = row.seats if isinstance(row, RoundDetail) else ()
    clients = [(f"edge-{edge.home}", edge.by_class) for edge in row.edges]
    clients += [(f"device-{seat.seat}", seat.by_class) for seat in seats]
    for client, tables in clients:
        for name, counts in tables.items():
            yield client, name, counts


def class_name(names: Sequence[str], label: int) -> str:
    """The name of a class, its number if the data have none."""
    return names[label] if label < len(names) else str(label)


def class_rows(row: RoundInfo, names: Sequence[str]) -> list[Row]:
    """Lines of `classes.csv`: each class that is a target or a prediction; an undefined share is an empty cell."""
    found = list[Row]()
    for client, evaluation, counts in tables_of(row):
        head = (row.round_no, row.kind, client, evaluation)
        for label, (targets, predictions) in enumerate(zip(counts.targets, counts.predictions, strict=True)):
            if targets or predictions:
                shares = [counts.recall(label), counts.precision(label), counts.f1(label)]
                cells = ["" if share is None else share for share in shares]
                sums = (targets, predictions, counts.hits[label])
                found.append((*head, label, class_name(names, label), *sums, *cells))
    return found


def confusion_header(row: RoundInfo, names: Sequence[str]) -> Row | None:
    """The header of `confusion.csv`: a column for each predicted class; None where a round has no matrix."""
    n_classes = next((len(counts.confusion) for _, _, counts in tables_of(row) if counts.confusion), 0)
    columns = (class_name(names, label) for label in range(n_classes))
    return ("round_no", "kind", "client", "evaluation", "target", *columns) if n_classes else None


def confusion_rows(row: RoundInfo, names: Sequence[str]) -> list[Row]:
    """Lines of `confusion.csv`: each class that has samples, with the number of its predictions as each class."""
    return [
        (row.round_no, row.kind, client, evaluation, class_name(names, label), *counted)
        for client, evaluation, counts in tables_of(row)
        for label, counted in enumerate(counts.confusion)
        if counts.targets[label]
    ]
