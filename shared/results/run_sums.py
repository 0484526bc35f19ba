"""What each device and each edge did over a whole run: sums of the records of its visits and rounds."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.run_records.metrics import MetricInfo, value_in
from shared.run_records.rounds import EdgeRow, last_edge
from shared.run_records.visits import PARTS, VisitRow, end_of


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


@dataclass
class VisitSum:
    """The sums over the visits in training of one device, or at one edge.

    Attributes:
        n_timed: visits that took any time, of which `seconds` are the parts.
    """

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

    def add(self, visit: VisitRow) -> None:
        """Add a visit."""
        self.seats.add(visit.seat)
        self.edges[visit.edge] = None
        if visit.profile is not None:
            self.profiles[visit.profile] = None
        self.ends[end_of(visit.outcome, visit.reason), visit.reason] += 1
        self.staleness.add(visit)
        self.up_bytes += visit.up_bytes
        self.down_bytes += visit.down_bytes
        self.simulated_s += visit.simulated_s
        self.energy_j += visit.energy_j
        if visit.simulated_s > 0:
            self.n_timed += 1
            self.seconds.update({part: getattr(visit, name) for part, name in PARTS})


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
    up_bytes: int = 0
    down_bytes: int = 0
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
        self.up_bytes += row.up_bytes
        self.down_bytes += row.down_bytes
        self.down_s += row.down_s
        self.up_s += row.up_s
        self.simulated_s += row.simulated_s


class RunSums:
    """The sums of a run, by seat and by the name of the edge's process; also those that have only tested a model."""

    def __init__(self, metric: MetricInfo) -> None:
        self.metric = metric
        self.scores: dict[int, Scores] = defaultdict(lambda: Scores(metric))
        self.by_seat: dict[int, VisitSum] = defaultdict(VisitSum)
        self.by_edge: dict[str, VisitSum] = defaultdict(VisitSum)
        self.edges: dict[str, EdgeSum] = defaultdict(lambda: EdgeSum(Scores(metric)))

    def add_visit(self, kind: str, visit: VisitRow) -> None:
        """Add a visit of a round of a kind."""
        self.scores[visit.seat].add(kind, visit)
        for total in (self.by_seat[visit.seat], self.by_edge[visit.edge]):
            if kind == "train":
                total.add(visit)

    def add_edges(self, kind: str, edges: Sequence[EdgeRow]) -> None:
        """Add the edges of a round of a kind."""
        last = last_edge(edges)
        for row in edges:
            self.edges[row.edge].add(kind, row, is_last=row is last)
