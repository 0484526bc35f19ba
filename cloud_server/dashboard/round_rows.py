"""The table of a run's rounds, in which the ends of visits add up to the visits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cloud_server.dashboard.tables import Figure, figure, named_score, row_of
from shared.core.formatting import size
from shared.plots.history import RunHistory, VisitSummary
from shared.run_records.metrics import MetricInfo
from shared.run_records.rounds import RoundInfo
from shared.run_records.visits import ENDS, USED_LATE, end_of

_ALWAYS = ("used", "late", "refused", "failed")
"""Ends that have a column in every run; the others have one where a visit ended so."""
_LOST_EDGES = "lost edges"
Ends = Mapping[tuple[str, str | None], int]
"""Numbers of visits by end and reason."""


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

    @property
    def shown(self) -> list[str]:
        """The ends that have a column, in the order of `ENDS`."""
        found = {end for ends in self.by_round.values() for end, _ in ends}
        return [end for end in (*ENDS, USED_LATE) if end in found or end in _ALWAYS]


def round_table(history: RunHistory, counts: VisitCounts) -> tuple[list[str], list[dict[str, object]]]:
    """The columns and the rows of the table, newest round first."""
    ends, rounds = counts.shown, history.trained
    more = [_LOST_EDGES] if any(_n_lost_edges(row) for row in rounds) else []
    columns = ["round", "phase", "visits", *ends, *more, "score", "train loss", "bytes", "simulated time (s)"]
    rows = [_row(row, history.info.headline, counts.by_round.get(row.round_no, {}), ends) for row in reversed(rounds)]
    return columns, [{name: row[name] for name in ("shown", *columns)} for row in rows]


def _row(info: RoundInfo, metric: MetricInfo, found: Ends, ends: Sequence[str]) -> dict[str, object]:
    n_bytes = info.bytes_up + info.bytes_down
    cells = {
        "round": info.round_no,
        "phase": info.phase,
        "visits": info.n_visits,
        **{end: _count(end, found) for end in ends},
        _LOST_EDGES: _n_lost_edges(info),
        "score": named_score(metric, info.on_global(metric)),
        "train loss": figure(info.train_loss),
        "bytes": Figure(n_bytes, size(n_bytes)),
        "simulated time (s)": figure(info.simulated_s),
    }
    return row_of(cells)


def _count(end: str, found: Ends) -> Figure:
    """The number of visits that ended so; of failures and refusals with the reasons."""
    reasons = {reason: n for (each, reason), n in found.items() if each == end}
    n = sum(reasons.values())
    if end not in ("refused", "failed") or not n:
        return Figure(n, str(n))
    return Figure(n, f"{n} ({', '.join(f'{count} {reason}' for reason, count in sorted(reasons.items(), key=str))})")


def _n_lost_edges(info: RoundInfo) -> int:
    return sum(failure.seat is None for failure in info.failures)
