"""The tables of a report."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TypeVar

from shared.core.errors import NotFound
from shared.core.formatting import percent, size
from shared.plots.classes import last_counts
from shared.results.class_tables import class_name
from shared.results.comparison import Comparison
from shared.results.group_scores import GROUPS_NOTE, group_columns
from shared.results.reader import EdgeRound
from shared.results.run_sums import EdgeSum, RunSums, Scores
from shared.results.sum_columns import (
    DEVICES_NOTE,
    EDGE_COLUMNS,
    EDGES_NOTE,
    STALENESS_NOTE,
    Columns,
    Edge,
    device_columns,
    devices_of,
    n_ended,
    shown_ends,
)
from shared.results.text_tables import TextColumn, comparison_columns, round_columns
from shared.run_records.metrics import MetricInfo
from shared.run_records.rounds import RoundInfo, last_edge
from shared.run_records.runs import RunInfo, SeatInfo
from shared.run_records.visits import FailureInfo, VisitRow
from shared.simulation.cost_model import LinkUse

R = TypeVar("R")
MAX_ROWS = 1000
"""Rows of a table: a page with more would not open."""
_OPEN = 12
"""A table with at most this many rows is open when the page is loaded."""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row is its heading.

    Attributes:
        name: its heading.
        columns: their headings.
        rows: of cells, as many as columns.
        words: indexes of the columns that hold words, not figures.
        note: shown below the table.
        absent: shown instead of rows if there are none.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: frozenset[int] = frozenset({0})
    note: str = ""
    absent: str = "None."

    @classmethod
    def of(cls, name: str, columns: Sequence[TextColumn], note: str = "") -> Table:
        """A table of columns."""
        rows = list(zip(*(column.cells for column in columns), strict=True))
        words = frozenset(at for at, column in enumerate(columns) if column.words or at == 0)
        return cls(name, [column.name for column in columns], rows, words, note)

    @property
    def shown(self) -> Sequence[Sequence[str]]:
        """The rows that are shown."""
        return self.rows[:MAX_ROWS]

    @property
    def is_open(self) -> bool:
        """Whether the table is open when the page is loaded."""
        return len(self.rows) <= _OPEN


def comparison_table(comparison: Comparison) -> Table:
    """One row for each run, beside each other."""
    return Table.of("Runs side by side", comparison_columns(comparison))


def rounds_table(rounds: Sequence[RoundInfo], metrics: Sequence[MetricInfo]) -> Table:
    """One row for each round."""
    note = (
        f"clients, min, max: {metrics[0].label} on the clients' own test sets; worst decile: mean of the worst tenth "
    )
    return Table.of("Rounds", round_columns(rounds, metrics), f"{note}of them; up, down: bytes on both simulated links")


def groups_tables(info: RunInfo) -> list[Table]:
    """The scores by group (of each hospital, say); no table for data without groups."""
    columns = group_columns(info)
    return [Table.of("Groups", columns, GROUPS_NOTE)] if columns else []


def classes_table(rounds: Sequence[RoundInfo], names: Sequence[str]) -> Table | None:
    """One row for each class of the newest evaluation that counted them; None where none did."""
    found = last_counts(rounds)
    if found is None:
        return None
    evaluation, counts = found
    rows = [
        [
            class_name(names, label),
            *map(str, (targets, predictions, counts.hits[label])),
            *(percent(of(label)) for of in (counts.recall, counts.precision, counts.f1)),
        ]
        for label, (targets, predictions) in enumerate(zip(counts.targets, counts.predictions, strict=True))
        if targets or predictions
    ]
    note = f"evaluation {evaluation}; a dash: undefined, since no sample is of the class, or is predicted as it"
    return Table("Classes", ["class", "samples", "predictions", "hits", "recall", "precision", "F1"], rows, note=note)


def failures_table(rounds: Iterable[RoundInfo]) -> Table:
    """Lost contributions by reason."""
    by_reason: dict[str, list[tuple[int, FailureInfo]]] = defaultdict(list)
    for row in rounds:
        for failure in row.failures:
            by_reason[failure.reason].append((row.round_no, failure))
    rows = []
    for reason, found in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0])):
        seats = {seat for _, failure in found for seat in (failure.seat, *failure.seats) if seat is not None}
        numbers = sorted({round_no for round_no, _ in found})
        rows.append([reason, str(len(found)), str(len(seats)), _listed(numbers), found[0][1].detail])
    return Table(
        "Failures by reason", ["reason", "times", "devices", "rounds", "first message"], rows, frozenset({0, 3, 4})
    )


def _listed(numbers: Sequence[int], most: int = 12) -> str:
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


def visits_tables(
    visits: Iterable[tuple[str, VisitRow]], seats: Sequence[SeatInfo], links: Path, metric: MetricInfo
) -> list[Table]:
    """Devices, edges and links, from the visits of a run and the table of its links.

    Raises:
        NotFound: the table of links cannot be read.
    """
    sums = RunSums(metric)
    for kind, visit in visits:
        sums.add_visit(kind, visit)
    used = _read_links(links)
    return [_devices_table(sums, seats, metric), _edges_table(sums, used), _links_table(used)]


def _devices_table(sums: RunSums, seats: Sequence[SeatInfo], metric: MetricInfo) -> Table:
    devices = devices_of(sums, seats)
    return _of(device_columns(devices), "Devices", devices, DEVICES_NOTE.format(label=metric.label))


def _of(columns: Columns[R], name: str, rows: Sequence[R], note: str) -> Table:
    """A table of the columns that its rows need."""
    names = columns.shown(rows)
    words = frozenset(at for at, column in enumerate(names) if column in columns.words)
    note += STALENESS_NOTE if "staleness" in names else ""
    return Table(name, names, [columns.texts(row, names) for row in rows], words, note)


def _edges_table(sums: RunSums, used: dict[tuple[str, str], LinkUse]) -> Table:
    ends = shown_ends(total.ends for total in sums.by_edge.values())
    columns = ["edge", "devices", *ends, "up from devices", "down to devices", "up to cloud", "down from cloud"]
    rows = []
    for edge, total in sorted(sums.by_edge.items()):
        cloud = sum((use for (link, _), use in used.items() if link == f"{edge}/cloud"), LinkUse())
        n_bytes = (total.up_bytes, total.down_bytes, cloud.up_bytes, cloud.down_bytes)
        counts = (n_ended(end, total.ends).text for end in ends)
        rows.append([edge or "-", str(len(total.seats)), *counts, *map(size, n_bytes)])
    return Table("Edges", columns, rows, note="tasks by their end; bytes on both simulated links")


def edge_rounds_table(trained: Sequence[RoundInfo], edges: Iterable[EdgeRound], metric: MetricInfo) -> Table:
    """The outcomes of each edge's rounds, and the rounds of which the results folder has no record.

    Args:
        trained: the training rounds of the run.
        edges: the edge rows in its results folder.
        metric: the run's headline metric.
    """
    sums: dict[tuple[str, int], EdgeSum] = defaultdict(lambda: EdgeSum(Scores(metric)))
    recorded: set[int] = set()
    for (round_no, kind), found in groupby(edges, key=lambda each: each[:2]):
        rows = [each.row for each in found]
        last = last_edge(rows)
        recorded |= {round_no} if kind == "train" else set()
        for row in rows:
            sums[row.edge, row.home].add(kind, row, is_last=row is last)
    table = _of(EDGE_COLUMNS, "Rounds of edges", [Edge(key[0], sums[key]) for key in sorted(sums)], EDGES_NOTE)
    unrecorded = [row.round_no for row in trained if row.round_no not in recorded]
    if not unrecorded:
        return table
    return replace(table, note=f"{table.note}. Not recorded: rounds {_listed(unrecorded)}", absent=_NO_RECORD)


_NO_RECORD = (
    "This results folder has no record of edges (edges.ndjson): an earlier version of StrataFL wrote it. "
    "The outcomes of edges are unknown, and the timeline has no rows for them."
)


def _read_links(path: Path) -> dict[tuple[str, str], LinkUse]:
    """Bytes by link and purpose; a last line that a crash cut short is left out."""
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"{path} cannot be read: {error}") from None
    found: dict[tuple[str, str], LinkUse] = defaultdict(LinkUse)
    lines = content[: content.rfind("\n") + 1].splitlines()
    for number_, row in enumerate(csv.DictReader(lines), start=2):
        try:
            use = LinkUse(down_bytes=int(row["down_bytes"]), up_bytes=int(row["up_bytes"]))
            found[row["link"], row["purpose"]] += use
        except (LookupError, TypeError, ValueError) as error:
            raise NotFound(f"{path}, line {number_}: {error}") from None
    return dict(found)


def _links_table(used: dict[tuple[str, str], LinkUse]) -> Table:
    rows = [[link, purpose, size(use.up_bytes), size(use.down_bytes)] for (link, purpose), use in used.items()]
    return Table("Links", ["link", "purpose", "up", "down"], rows, frozenset({0, 1}), "all rounds together")
