"""The tables of a report."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shared.core.errors import NotFound
from shared.core.formatting import duration, size
from shared.results.comparison import Comparison
from shared.results.reader import EdgeRound
from shared.results.text_tables import TextColumn, comparison_columns, round_columns
from shared.run_records.metrics import MetricInfo, value_in
from shared.run_records.rounds import EdgeRow, RoundInfo
from shared.run_records.runs import SeatInfo
from shared.run_records.visits import FailureInfo, VisitRow
from shared.simulation.cost_model import LinkUse

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
        "Failures by reason", ["reason", "times", "seats", "rounds", "first message"], rows, frozenset({0, 3, 4})
    )


def _listed(numbers: Sequence[int], most: int = 12) -> str:
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


def newest(before: float | None, value: float | None) -> float | None:
    """The newer of two values, where it is known."""
    return before if value is None else value


@dataclass
class _Staleness:
    """By how many versions answers were old when they counted, of those for which their tier did not wait."""

    n: int = 0
    total: int = 0
    largest: int = 0

    def add(self, row: VisitRow | EdgeRow) -> None:
        """Adds an answer."""
        if row.staleness_s and row.outcome != "failed":
            self.n, self.total, self.largest = self.n + 1, self.total + row.staleness, max(self.largest, row.staleness)

    @property
    def cell(self) -> str:
        """Mean and maximum."""
        return f"{self.total / self.n:.1f}, at most {self.largest}" if self.n else "-"


@dataclass
class _Sum:
    """The sums over visits of one seat, or at one edge, with the newest values of the headline metric."""

    metric: MetricInfo
    seats: set[int] = field(default_factory=set)
    edges: dict[str, None] = field(default_factory=dict)
    profiles: dict[str, None] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    use: LinkUse = field(default_factory=LinkUse)
    simulated_s: float = 0.0
    energy_j: float = 0.0
    staleness: _Staleness = field(default_factory=_Staleness)
    received: float | None = None
    own: float | None = None

    def add(self, kind: str, visit: VisitRow) -> None:
        """Adds a visit; of the final evaluation, only the scores."""
        self.received = newest(self.received, value_in(visit, "received", self.metric))
        self.own = newest(self.own, value_in(visit, "own", self.metric))
        if kind != "train":
            return
        self.seats.add(visit.seat)
        self.edges[visit.edge] = None
        if visit.profile is not None:
            self.profiles[visit.profile] = None
        self.outcomes[visit.outcome] += 1
        self.staleness.add(visit)
        self.use += LinkUse(down_bytes=visit.down_bytes, up_bytes=visit.up_bytes)
        self.simulated_s += visit.simulated_s
        self.energy_j += visit.energy_j


_OUTCOMES = ("used", "used_late", "refused", "failed")


def visits_tables(
    visits: Iterable[tuple[str, VisitRow]], seats: Sequence[SeatInfo], links: Path, metric: MetricInfo
) -> list[Table]:
    """Clients, edges and links, from the visits of a run and the table of its links.

    Raises:
        NotFound: the table of links cannot be read.
    """
    by_seat: dict[int, _Sum] = defaultdict(lambda: _Sum(metric))
    by_edge: dict[str, _Sum] = defaultdict(lambda: _Sum(metric))
    for kind, visit in visits:
        by_seat[visit.seat].add(kind, visit)
        by_edge[visit.edge].add(kind, visit)
    used = _read_links(links)
    return [_clients_table(by_seat, seats), _edges_table(by_edge, used), _links_table(used)]


def _clients_table(by_seat: dict[int, _Sum], seats: Sequence[SeatInfo]) -> Table:
    columns = ["seat", "edge", "profile", "samples", *map(_word, _OUTCOMES), "received", "own", "up", "down"]
    columns += ["simulated", "energy", *_staleness_column(by_seat)]
    samples, rows = {seat.seat: seat.n_train for seat in seats}, []
    for seat, total in sorted(by_seat.items()):
        rows.append(
            [
                str(seat),
                ", ".join(filter(None, total.edges)) or "-",
                ", ".join(total.profiles) or "-",
                str(samples.get(seat, "-")),
                *(str(total.outcomes[outcome]) for outcome in _OUTCOMES),
                total.metric.text(total.received),
                total.metric.text(total.own),
                size(total.use.up_bytes),
                size(total.use.down_bytes),
                duration(total.simulated_s),
                f"{total.energy_j:.3g} J" if total.energy_j else "-",
                total.staleness.cell,
            ][: len(columns)]
        )
    label = next(iter(by_seat.values())).metric.label if by_seat else "accuracy"
    note = f"received, own: newest {label} of the received and of the local model, on the client's own test set"
    if "staleness" in columns:
        note += "; staleness: versions that the edge's model was ahead when the client's update counted"
    return Table("Clients", columns, rows, frozenset({0, 1, 2}), note)


def _staleness_column(sums: Mapping[Any, _Sum | _EdgeSum]) -> list[str]:
    """The last column, where a tier did not wait for all answers."""
    return ["staleness"] if any(total.staleness.n for total in sums.values()) else []


def _edges_table(by_edge: dict[str, _Sum], used: dict[tuple[str, str], LinkUse]) -> Table:
    columns = ["edge", "seats", *map(_word, _OUTCOMES), "up from devices", "down to devices", "up to cloud"]
    columns += ["down from cloud"]
    rows = []
    for edge, total in sorted(by_edge.items()):
        cloud = sum((use for (link, _), use in used.items() if link == f"{edge}/cloud"), LinkUse())
        rows.append(
            [
                edge or "-",
                str(len(total.seats)),
                *(str(total.outcomes[outcome]) for outcome in _OUTCOMES),
                size(total.use.up_bytes),
                size(total.use.down_bytes),
                size(cloud.up_bytes),
                size(cloud.down_bytes),
            ]
        )
    return Table("Edges", columns, rows, note="visits by outcome; bytes on both simulated links")


@dataclass
class _EdgeSum:
    """The sums over the rounds of an edge, with the newest values of the headline metric."""

    metric: MetricInfo
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    n_used: int = 0
    down_s: float = 0.0
    up_s: float = 0.0
    simulated_s: float = 0.0
    staleness: _Staleness = field(default_factory=_Staleness)
    received: float | None = None
    own: float | None = None

    def add(self, kind: str, row: EdgeRow) -> None:
        """Adds a round; of the final evaluation, only the scores."""
        self.received = newest(self.received, value_in(row, "received", self.metric))
        self.own = newest(self.own, value_in(row, "own", self.metric))
        if kind != "train":
            return
        self.outcomes[row.outcome] += 1
        if row.reason is not None:
            self.reasons[row.reason] += 1
        self.n_used += row.n_used
        self.staleness.add(row)
        self.down_s += row.down_s
        self.up_s += row.up_s
        self.simulated_s += row.simulated_s


_EDGE_OUTCOMES = ("used", "idle", "failed", "away")


def edge_rounds_table(trained: Sequence[RoundInfo], edges: Iterable[EdgeRound], metric: MetricInfo) -> Table:
    """The outcomes of each edge's rounds, and the rounds of which the results folder has no record.

    Args:
        trained: the training rounds of the run.
        edges: the edge rows in its results folder.
        metric: the run's headline metric.
    """
    columns = ["edge", "home", *_EDGE_OUTCOMES, "reasons", "updates", "received", "own"]
    sums: dict[tuple[str, int], _EdgeSum] = defaultdict(lambda: _EdgeSum(metric))
    recorded: set[int] = set()
    for round_no, kind, row in edges:
        recorded |= {round_no} if kind == "train" else set()
        sums[row.edge, row.home].add(kind, row)
    columns += ["download", "upload", "simulated", *_staleness_column(sums)]
    rows = [
        [
            edge or "-",
            str(home),
            *(str(total.outcomes[outcome]) for outcome in _EDGE_OUTCOMES),
            ", ".join(f"{reason} {n}" for reason, n in sorted(total.reasons.items())) or "-",
            str(total.n_used),
            metric.text(total.received),
            metric.text(total.own),
            duration(total.down_s),
            duration(total.up_s),
            duration(total.simulated_s),
            total.staleness.cell,
        ][: len(columns)]
        for (edge, home), total in sorted(sums.items())
    ]
    note = (
        "rounds by outcome; download, upload: seconds on the link to the cloud; simulated: these plus the edge rounds"
    )
    if "staleness" in columns:
        note += "; staleness: versions that the global model was ahead when the edge's answer counted"
    unrecorded = [row.round_no for row in trained if row.round_no not in recorded]
    absent = _NO_RECORD if unrecorded else "None."
    if unrecorded:
        note += f". Not recorded: rounds {_listed(unrecorded)}"
    return Table("Rounds of edges", columns, rows, frozenset({0, 6}), note, absent)


_NO_RECORD = (
    "This results folder has no record of edges (edges.ndjson): an earlier version of StrataFL wrote it. "
    "The outcomes of edges are unknown, and the timeline has no rows for them."
)


def _word(outcome: str) -> str:
    return outcome.replace("_", " ")


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
