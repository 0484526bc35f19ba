"""The columns in which people read what devices and edges did over a run, in reports and on the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from shared.core.formatting import Figure, duration, natural, size
from shared.results.run_sums import EdgeSum, RunSums, Scores, Staleness, VisitSum
from shared.run_records.groups import groups_text
from shared.run_records.runs import SeatInfo
from shared.run_records.visits import ENDS, PARTS, USED_LATE

Cell = Figure | str
R = TypeVar("R")
Ends = Mapping[tuple[str, str | None], int]
"""Numbers of visits by end and reason."""
_ALWAYS = ("used", "late", "refused", "failed")
_NOTHING = Figure(None, "-")


def shown_ends(found: Iterable[Ends]) -> list[str]:
    """The ends of visits that have a column, in their order: four in every run, the others where a visit ended so."""
    seen = {end for ends in found for end, _ in ends}
    return [end for end in (*ENDS, USED_LATE) if end in seen or end in _ALWAYS]


def n_ended(end: str, found: Ends) -> Figure:
    """The number of visits that ended so; of failures and refusals with the reasons."""
    reasons = {reason: n for (each, reason), n in found.items() if each == end}
    n = sum(reasons.values())
    known = [f"{count} {reason}" for reason, count in sorted(reasons.items(), key=str) if reason is not None]
    return Figure(n, f"{n} ({', '.join(known)})" if known and end in ("refused", "failed") else str(n))


@dataclass(frozen=True)
class Columns(Generic[R]):
    """The columns of a table: a cell of each row `R`, which is made when it is shown, or sorted by.

    Attributes:
        cells: by name of the column; the first is that of the row's heading.
        words: columns that hold words, not figures.
        optional: columns that are left out where no row has a value.
    """

    cells: Mapping[str, Callable[[R], Cell]]
    words: frozenset[str]
    optional: frozenset[str]

    def shown(self, rows: Sequence[R]) -> list[str]:
        """The names of the columns of a table with these rows."""
        return [
            name
            for name, of in self.cells.items()
            if name not in self.optional or any(of(row) not in ("", _NOTHING) for row in rows)
        ]

    def in_order(self, rows: Sequence[R], name: str, *, descending: bool) -> list[R]:
        """Rows sorted by a column: by value or naturally, those without a value last."""
        keys = [(_key(self.cells[name](row)), row) for row in rows]
        known = sorted(((key, row) for key, row in keys if key is not None), key=itemgetter(0), reverse=descending)
        return [row for _, row in known] + [row for key, row in keys if key is None]

    def texts(self, row: R, names: Iterable[str]) -> list[str]:
        """A row as text."""
        cells = (self.cells[name](row) for name in names)
        return [cell.text if isinstance(cell, Figure) else cell for cell in cells]


def _key(cell: Cell) -> Any:
    return cell.value if isinstance(cell, Figure) else natural(cell)


class Device(NamedTuple):
    """A device over the whole run: its number, its place if that is known, its visits and scores."""

    number: int
    seat: SeatInfo | None
    total: VisitSum
    scores: Scores

    @property
    def is_client(self) -> bool:
        """Whether it is no worker, a device of an edge's own."""
        return self.seat is None or self.seat.role != "worker"

    @property
    def name(self) -> Figure:
        """Its number."""
        return Figure(self.number, str(self.number) if self.is_client else f"{self.number}, worker")

    @property
    def edges(self) -> str:
        """Those at which it has made visits, or its own."""
        own = self.seat.edge if self.seat else None
        return ", ".join(filter(None, self.total.edges)) or own or "-"

    @property
    def profiles(self) -> str:
        """Those that it has had in its visits, or has."""
        return ", ".join(self.total.profiles) or (self.seat.profile if self.seat else "-")

    @property
    def group(self) -> str:
        """The groups of its samples, such as the hospital; empty for data without groups."""
        return groups_text(self.seat) if self.seat else ""

    @property
    def samples(self) -> Figure:
        """Its training samples."""
        return Figure(self.seat.n_train, str(self.seat.n_train)) if self.seat else _NOTHING

    @property
    def energy(self) -> Figure:
        """What its visits consumed."""
        return Figure(self.total.energy_j, f"{self.total.energy_j:.3g} J") if self.total.energy_j else _NOTHING


class Edge(NamedTuple):
    """An edge over the whole run: its name, its rounds, the visits at it if they are shown too."""

    name: str
    total: EdgeSum
    visits: VisitSum | None = None

    @property
    def reasons(self) -> str:
        """Why its rounds had no answer."""
        return ", ".join(f"{reason} {n}" for reason, n in sorted(self.total.reasons.items())) or "-"


def devices_of(sums: RunSums, seats: Sequence[SeatInfo]) -> list[Device]:
    """The devices of a run in the order of their numbers, those without a visit too."""
    placed, visited, scores = {seat.seat: seat for seat in seats}, sums.by_seat, sums.scores
    return [
        Device(number, placed.get(number), visited.get(number, VisitSum()), scores.get(number, Scores(sums.metric)))
        for number in sorted({*placed, *visited})
    ]


def bytes_cell(n_bytes: int) -> Figure:
    """Bytes in a unit that suits them."""
    return Figure(n_bytes, size(n_bytes))


def _count(n: int) -> Figure:
    return Figure(n, str(n))


def _mean_s(total_s: float, n: int) -> Figure:
    return Figure(total_s / n, duration(total_s / n)) if total_s else _NOTHING


def mean_visit(total: VisitSum, *parts: str) -> Figure:
    """The mean seconds that parts of a visit took."""
    return _mean_s(sum(total.seconds[part] for part in parts), total.n_timed)


def _staleness(found: Staleness) -> Figure:
    if not found.n:
        return _NOTHING
    return Figure(found.total / found.n, f"{found.total / found.n:.1f}, at most {found.largest}")


def _score(scores: Scores, value: float | None) -> Figure:
    return Figure(value, scores.metric.text(value))


def _ended(end: str) -> Callable[[Device], Cell]:
    return lambda row: n_ended(end, row.total.ends)


def _part(part: str) -> Callable[[Device], Cell]:
    return lambda row: mean_visit(row.total, part)


def _rounds(outcome: str) -> Callable[[Edge], Cell]:
    return lambda row: _count(row.total.outcomes[outcome])


def device_columns(devices: Sequence[Device]) -> Columns[Device]:
    """The columns of a table of devices, with those ends in which their visits ended."""
    ends = shown_ends(device.total.ends for device in devices)
    cells: dict[str, Callable[[Device], Cell]] = {
        "device": lambda row: row.name,
        "group": lambda row: row.group,
        "edge": lambda row: row.edges,
        "profile": lambda row: row.profiles,
        "straggler": lambda row: "straggler" if row.seat and row.seat.straggler else "",
        "samples": lambda row: row.samples,
        "received": lambda row: _score(row.scores, row.scores.received),
        "own": lambda row: _score(row.scores, row.scores.own),
        **{end: _ended(end) for end in ends},
        "mean task": lambda row: mean_visit(row.total, *(part for part, _ in PARTS)),
        **{part: _part(part) for part, _ in PARTS},
        "up": lambda row: bytes_cell(row.total.up_bytes),
        "down": lambda row: bytes_cell(row.total.down_bytes),
        "simulated": lambda row: Figure(row.total.simulated_s, duration(row.total.simulated_s)),
        "energy": lambda row: row.energy,
        "staleness": lambda row: _staleness(row.total.staleness),
    }
    optional = {
        "group",
        "straggler",
        "received",
        "own",
        "mean task",
        *(part for part, _ in PARTS),
        "energy",
        "staleness",
    }
    return Columns(cells, frozenset({"device", "group", "edge", "profile", "straggler"}), frozenset(optional))


_OUTCOMES = ("used", "idle", "failed", "away")
EDGE_COLUMNS = Columns[Edge](
    {
        "edge": lambda row: row.name or "-",
        "edge number": lambda row: ", ".join(map(str, sorted(row.total.homes))),
        **{outcome: _rounds(outcome) for outcome in _OUTCOMES},
        "reasons": lambda row: row.reasons,
        "updates": lambda row: _count(row.total.n_used),
        "received": lambda row: _score(row.total.scores, row.total.scores.received),
        "own": lambda row: _score(row.total.scores, row.total.scores.own),
        "came last": lambda row: _count(row.total.n_last),
        "mean round": lambda row: _mean_s(row.total.simulated_s, row.total.n_timed),
        "mean download": lambda row: _mean_s(row.total.down_s, row.total.n_timed),
        "mean upload": lambda row: _mean_s(row.total.up_s, row.total.n_timed),
        "up to cloud": lambda row: bytes_cell(row.total.up_bytes),
        "down from cloud": lambda row: bytes_cell(row.total.down_bytes),
        "up from devices": lambda row: bytes_cell(row.visits.up_bytes) if row.visits else _NOTHING,
        "down to devices": lambda row: bytes_cell(row.visits.down_bytes) if row.visits else _NOTHING,
        "download": lambda row: Figure(row.total.down_s, duration(row.total.down_s)),
        "upload": lambda row: Figure(row.total.up_s, duration(row.total.up_s)),
        "simulated": lambda row: Figure(row.total.simulated_s, duration(row.total.simulated_s)),
        "staleness": lambda row: _staleness(row.total.staleness),
    },
    words=frozenset({"edge", "edge number", "reasons"}),
    optional=frozenset(
        {
            "received",
            "own",
            "mean round",
            "mean download",
            "mean upload",
            "up from devices",
            "down to devices",
            "staleness",
        }
    ),
)
DEVICES_NOTE = (
    "received, own: newest {label} of the model that the device received and of its own model after training, each on "
    "its own test set; mean task: seconds of a task, of which download, compute, wait and upload"
)
EDGES_NOTE = (
    "used, idle, failed, away: rounds; updates: of its devices; came last: how often the round's end waited for it; "
    "download, upload: the link to the cloud"
)
STALENESS_NOTE = "; staleness: versions that the model above was ahead when the answer counted"
