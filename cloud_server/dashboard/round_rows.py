"""The table of a run's rounds, in which the ends of visits add up to the visits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from cloud_server.dashboard.tables import Figure, figure, named_score, row_of
from shared.core.formatting import size
from shared.plots.history import RunHistory, VisitSummary
from shared.results.sum_columns import Ends, n_ended, shown_ends
from shared.run_records.metrics import MetricInfo
from shared.run_records.rounds import RoundInfo
from shared.run_records.visits import end_of

_LOST_EDGES = "lost edges"


@dataclass
class VisitCounts:
    """How many visits of each round ended how; counts each visit once, however often the page is refreshed."""

    by_round: dict[int, Counter[tuple[str, str | None]]] = field(default_factory=lambda: defaultdict(Counter))
    _n_counted: int = 0

    def add(self, visits: Sequence[VisitSummary]) -> None:
        """Count the visits that have been added to a run's list since the last call."""
        if len(visits) < self._n_counted:  # the run was read again
            self.by_round.clear()
            self._n_counted = 0
        for visit in visits[self._n_counted :]:
            self.by_round[visit.round_no][end_of(visit.outcome, visit.reason), visit.reason] += 1
        self._n_counted = len(visits)


def round_table(history: RunHistory, counts: VisitCounts) -> tuple[list[str], list[dict[str, object]]]:
    """The columns and the rows of the table, newest round first."""
    ends, rounds = shown_ends(counts.by_round.values()), history.trained
    more = [_LOST_EDGES] if any(_n_lost_edges(row) for row in rounds) else []
    columns = ["round", "phase", "tasks", *ends, *more, "score", "train loss", "bytes", "simulated time (s)"]
    rows = [_row(row, history.info.headline, counts.by_round.get(row.round_no, {}), ends) for row in reversed(rounds)]
    return columns, [{name: row[name] for name in ("shown", *columns)} for row in rows]


def _row(info: RoundInfo, metric: MetricInfo, found: Ends, ends: Sequence[str]) -> dict[str, object]:
    n_bytes = info.bytes_up + info.bytes_down
    cells = {
        "round": info.round_no,
        "phase": info.phase,
        "tasks": info.n_visits,
        **{end: n_ended(end, found) for end in ends},
        _LOST_EDGES: _n_lost_edges(info),
        "score": named_score(metric, info.on_global(metric)),
        "train loss": figure(info.train_loss),
        "bytes": Figure(n_bytes, size(n_bytes)),
        "simulated time (s)": figure(info.simulated_s),
    }
    return row_of(cells)


def _n_lost_edges(info: RoundInfo) -> int:
    return sum(failure.seat is None for failure in info.failures)
