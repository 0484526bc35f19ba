"""What each device and each edge did over a whole run: sums of records, and the columns in which people read them.

Reports and the dashboard show the same columns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from shared.core.formatting import Figure, duration, natural, size
from shared.run_records.metrics import MetricInfo, value_in
from shared.run_records.rounds import EdgeRow, last_edge
from shared.run_records.runs import SeatInfo
from shared.run_records.visits import ENDS, PARTS, USED_LATE, VisitRow, end_of
from shared.simulation.cost_model import LinkUse

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


# ---- sums


@dataclass
class Staleness:
    """By how many versions answers were old when they counted, of those for which their tier did not wait."""

    n: int = 0
    total: int = 0
    largest: int = 0

    def add(self, row: VisitRow | EdgeRow) -> None:
        """Add an answer."""
        if row.staleness_s and row.outcome != "failed":
            self.n, self.total, self.largest = self.n + 1, self.total + row.staleness, max(self.largest, row.staleness)

    @property
    def cell(self) -> Figure:
        """Mean and maximum."""
        return Figure(self.total / self.n, f"{self.total / self.n:.1f}, at most {self.largest}") if self.n else _NOTHING


@dataclass
class Scores:
    """The newest values of a metric: of the model that a client received, and of its own."""

    metric: MetricInfo
    received: float | None = None
    own: float | None = None

    def add(self, kind: str, row: VisitRow | EdgeRow) -> None:
        """Keep a row's values, as far as it has them; a model received in the final evaluation is nobody's own."""
        received, own = value_in(row, "received", self.metric), value_in(row, "own", self.metric)
        self.received = self.received if received is None else received
        kept = kind == "evaluate" and own == received and row.own_loss == row.received_loss
        self.own = self.own if own is None or kept else own

    def cell(self, value: float | None) -> Figure:
        """One of the values."""
        return Figure(value, self.metric.text(value))


@dataclass
class VisitSum:
    """The sums over visits of one device, or at one edge.

    Attributes:
        n_timed: visits that took any time, of which `seconds` are the parts.
    """

    scores: Scores
    seats: set[int] = field(default_factory=set)
    edges: dict[str, None] = field(default_factory=dict)
    profiles: dict[str, None] = field(default_factory=dict)
    ends: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    up_bytes: int = 0
    down_bytes: int = 0
    n_timed: int = 0
    seconds: Counter[str] = field(default_factory=Counter)
    simulated_s: float = 0.0
    energy_j: float = 0.0
    staleness: Staleness = field(default_factory=Staleness)

    def add(self, kind: str, visit: VisitRow) -> None:
        """Add a visit; of the final evaluation, only the scores."""
        self.scores.add(kind, visit)
        if kind != "train":
            return
        end = end_of(visit.outcome, visit.reason)
        self.seats.add(visit.seat)
        self.edges[visit.edge] = None
        if visit.profile is not None:
            self.profiles[visit.profile] = None
        self.ends[end, visit.reason] += 1
        self.staleness.add(visit)
        self.up_bytes, self.down_bytes = self.up_bytes + visit.up_bytes, self.down_bytes + visit.down_bytes
        self.simulated_s += visit.simulated_s
        self.energy_j += visit.energy_j
        if visit.simulated_s > 0 and end != USED_LATE:
            self.n_timed += 1
            self.seconds.update({part: getattr(visit, name) for part, name in PARTS})

    def mean_s(self, *parts: str) -> Figure:
        """The mean seconds that parts of a visit took."""
        return _mean_s(sum(self.seconds[part] for part in parts), self.n_timed)


@dataclass
class EdgeSum:
    """The sums over the rounds of an edge.

    Attributes:
        n_last: rounds whose end waited for this edge.
    """

    scores: Scores
    homes: set[int] = field(default_factory=set)
    outcomes: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    n_used: int = 0
    n_last: int = 0
    n_timed: int = 0
    use: LinkUse = field(default_factory=LinkUse)
    down_s: float = 0.0
    up_s: float = 0.0
    simulated_s: float = 0.0
    staleness: Staleness = field(default_factory=Staleness)

    def add(self, kind: str, row: EdgeRow, *, is_last: bool = False) -> None:
        """Add a round; of the final evaluation, only the scores."""
        self.scores.add(kind, row)
        self.homes.add(row.home)
        if kind != "train":
            return
        self.outcomes[row.outcome] += 1
        if row.reason is not None:
            self.reasons[row.reason] += 1
        self.n_used += row.n_used
        self.n_last += is_last
        self.n_timed += row.simulated_s > 0
        self.staleness.add(row)
        self.use += LinkUse(down_bytes=row.down_bytes, up_bytes=row.up_bytes)
        self.down_s += row.down_s
        self.up_s += row.up_s
        self.simulated_s += row.simulated_s


def _mean_s(total_s: float, n: int) -> Figure:
    return Figure(total_s / n, duration(total_s / n)) if total_s else _NOTHING


class RunSums:
    """The sums of a run, by seat and by the name of the edge's process."""

    def __init__(self, metric: MetricInfo) -> None:
        self.by_seat: dict[int, VisitSum] = defaultdict(lambda: VisitSum(Scores(metric)))
        self.by_edge: dict[str, VisitSum] = defaultdict(lambda: VisitSum(Scores(metric)))
        self.edges: dict[str, EdgeSum] = defaultdict(lambda: EdgeSum(Scores(metric)))

    def add_visit(self, kind: str, visit: VisitRow) -> None:
        """Add a visit of a round of a kind."""
        self.by_seat[visit.seat].add(kind, visit)
        self.by_edge[visit.edge].add(kind, visit)

    def add_edges(self, kind: str, edges: Sequence[EdgeRow]) -> None:
        """Add the edges of a round of a kind."""
        last = last_edge(edges)
        for row in edges:
            self.edges[row.edge].add(kind, row, is_last=row is last)


# ---- columns


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
    """A device over the whole run: its number, its place if that is known, its visits."""

    number: int
    seat: SeatInfo | None
    total: VisitSum

    @property
    def name(self) -> Figure:
        """Its number; a worker is a device of an edge's own."""
        is_worker = self.seat is not None and self.seat.role == "worker"
        return Figure(self.number, f"{self.number}, worker" if is_worker else str(self.number))

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
    placed = {seat.seat: seat for seat in seats}
    return [Device(number, placed.get(number), sums.by_seat[number]) for number in sorted({*placed, *sums.by_seat})]


def bytes_cell(n_bytes: int) -> Figure:
    """Bytes in a unit that suits them."""
    return Figure(n_bytes, size(n_bytes))


def _count(n: int) -> Figure:
    return Figure(n, str(n))


def _ended(end: str) -> Callable[[Device], Cell]:
    return lambda row: n_ended(end, row.total.ends)


def _part(part: str) -> Callable[[Device], Cell]:
    return lambda row: row.total.mean_s(part)


def _rounds(outcome: str) -> Callable[[Edge], Cell]:
    return lambda row: _count(row.total.outcomes[outcome])


def device_columns(devices: Sequence[Device]) -> Columns[Device]:
    """The columns of a table of devices, with those ends in which their visits ended."""
    ends = shown_ends(device.total.ends for device in devices)
    cells: dict[str, Callable[[Device], Cell]] = {
        "device": lambda row: row.name,
        "edge": lambda row: row.edges,
        "profile": lambda row: row.profiles,
        "straggler": lambda row: "straggler" if row.seat and row.seat.straggler else "",
        "samples": lambda row: row.samples,
        "received": lambda row: row.total.scores.cell(row.total.scores.received),
        "own": lambda row: row.total.scores.cell(row.total.scores.own),
        **{end: _ended(end) for end in ends},
        "mean visit": lambda row: row.total.mean_s(*(part for part, _ in PARTS)),
        **{part: _part(part) for part, _ in PARTS},
        "up": lambda row: bytes_cell(row.total.up_bytes),
        "down": lambda row: bytes_cell(row.total.down_bytes),
        "simulated": lambda row: Figure(row.total.simulated_s, duration(row.total.simulated_s)),
        "energy": lambda row: row.energy,
        "staleness": lambda row: row.total.staleness.cell,
    }
    optional = {"straggler", "received", "own", "mean visit", *(part for part, _ in PARTS), "energy", "staleness"}
    return Columns(cells, frozenset({"device", "edge", "profile", "straggler"}), frozenset(optional))


_OUTCOMES = ("used", "idle", "failed", "away")
EDGE_COLUMNS = Columns[Edge](
    {
        "edge": lambda row: row.name or "-",
        "home": lambda row: ", ".join(map(str, sorted(row.total.homes))),
        **{outcome: _rounds(outcome) for outcome in _OUTCOMES},
        "reasons": lambda row: row.reasons,
        "updates": lambda row: _count(row.total.n_used),
        "received": lambda row: row.total.scores.cell(row.total.scores.received),
        "own": lambda row: row.total.scores.cell(row.total.scores.own),
        "came last": lambda row: _count(row.total.n_last),
        "mean round": lambda row: _mean_s(row.total.simulated_s, row.total.n_timed),
        "mean download": lambda row: _mean_s(row.total.down_s, row.total.n_timed),
        "mean upload": lambda row: _mean_s(row.total.up_s, row.total.n_timed),
        "up to cloud": lambda row: bytes_cell(row.total.use.up_bytes),
        "down from cloud": lambda row: bytes_cell(row.total.use.down_bytes),
        "up from devices": lambda row: bytes_cell(row.visits.up_bytes) if row.visits else _NOTHING,
        "down to devices": lambda row: bytes_cell(row.visits.down_bytes) if row.visits else _NOTHING,
        "download": lambda row: Figure(row.total.down_s, duration(row.total.down_s)),
        "upload": lambda row: Figure(row.total.up_s, duration(row.total.up_s)),
        "simulated": lambda row: Figure(row.total.simulated_s, duration(row.total.simulated_s)),
        "staleness": lambda row: row.total.staleness.cell,
    },
    words=frozenset({"edge", "home", "reasons"}),
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
    "its own test set; mean visit: seconds of a visit, of which download, compute, wait and upload"
)
EDGES_NOTE = (
    "used, idle, failed, away: rounds; updates: of its devices; came last: how often the round's end waited for it; "
    "download, upload: the link to the cloud"
)
STALENESS_NOTE = "; staleness: versions that the model above was ahead when the answer counted"
