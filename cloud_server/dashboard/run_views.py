"""Runs as the dashboard sees them: read through the archive like the REST API does, each round once for all viewers."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from dataclasses import dataclass, field

from cloud_server.dependencies import Cloud
from cloud_server.nodes.twins import twins_at
from shared.core.errors import Conflict
from shared.plots.history import RunHistory, VisitSummary
from shared.run_records.rounds import RoundDetail, RoundInfo
from shared.run_records.runs import RunInfo, SeatInfo
from shared.run_records.visits import SeatRow
from shared.simulation.digital_twin import Twin, TwinList

SEATS_EVERY_S = 2.0
TWINS_S = 2.0
"""For an edge to tell of its twins: a page does not wait longer for one that is busy or gone."""
_MOST = 16
"""Runs that are kept in mind at a time."""
_HISTORY = 50
"""Visits of a seat that are kept in mind."""


@dataclass
class RunView:
    """One run.

    Attributes:
        info: where it stands.
        rounds: those committed, with their evaluations so far.
        visits: of training rounds, as pictures need them.
        history: by seat, its last visits: number of the round, and the row.
        newest: the last training round with its visits.
        seats: who sits where; none before the run has started.
        twins: by edge, what it knows of its workers, where edges keep twins and the run trains.
        seats_at: when these were looked up (monotonic).
    """

    info: RunInfo
    rounds: tuple[RoundInfo, ...] = ()
    visits: list[VisitSummary] = field(default_factory=list)
    history: dict[int, list[tuple[int, SeatRow]]] = field(default_factory=dict)
    newest: RoundDetail | None = None
    seats: tuple[SeatInfo, ...] = ()
    twins: dict[str, tuple[Twin, ...]] = field(default_factory=dict)
    seats_at: float = -math.inf

    @property
    def told(self) -> RunHistory:
        """What it tells of itself."""
        return RunHistory(self.info, self.rounds, tuple(self.visits))

    def take(self, detail: RoundDetail) -> None:
        """Add a round that has been committed since."""
        self.newest = detail
        for row in detail.seats:
            self.visits.append(VisitSummary(detail.round_no, row.seat, row.edge, row.outcome, row.label, row.figures))
            past = self.history.setdefault(row.seat, [])
            past.append((detail.round_no, row))
            del past[:-_HISTORY]


class RunViews:
    """Keeps up with the runs that somebody looks at."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._runs: OrderedDict[str, RunView] = OrderedDict()
        self._lock = asyncio.Lock()

    async def run(self, run_id: str) -> RunView:
        """A run as it is now.

        Raises:
            NotFound: there is none of that id.
            StoreUnavailable: the store is away, and it was not known.
        """
        info = await self.cloud.runs.info(run_id)
        async with self._lock:
            known = self._runs.get(info.run)
            if known is None or known.info.rounds > info.rounds:
                known = RunView(info)
            if known.info != info or not known.rounds:
                await self._catch_up(known)
            known.info = info
            self._runs[info.run] = known
            self._runs.move_to_end(info.run)
            while len(self._runs) > _MOST:
                self._runs.popitem(last=False)
        return known

    async def _catch_up(self, known: RunView) -> None:
        archive, run_id = self.cloud.repository, known.info.run
        last = known.newest.round_no if known.newest else 0
        known.rounds = tuple(await archive.rounds(run_id))
        trained = max((row.round_no for row in known.rounds if row.kind == "train"), default=0)
        async for detail in archive.details(run_id, range(last + 1, trained + 1)):
            if detail.kind == "train":
                known.take(detail)

    async def seated(self, run_id: str) -> RunView:
        """The same, with who sits where now; that costs more, and is looked up every so often for all viewers."""
        known = await self.run(run_id)
        if time.monotonic() - known.seats_at < SEATS_EVERY_S:
            return known
        known.seats_at = time.monotonic()
        try:
            known.seats = await self.cloud.runs.seats(known.info.run)
        except Conflict:  # not started yet
            known.seats = ()
        known.twins = await self._twins(known.info)
        return known

    async def _twins(self, info: RunInfo) -> dict[str, tuple[Twin, ...]]:
        """The twins of live edges that tell of them soon."""
        if not info.spec.keeps_twins or info.status != "running":
            return {}
        registry = self.cloud.registry
        edges = registry.live_edges()
        asked = (asyncio.wait_for(twins_at(registry, edge, info.run), TWINS_S) for edge in edges)
        found = zip(edges, await asyncio.gather(*asked, return_exceptions=True), strict=True)
        return {edge: told.twins for edge, told in found if isinstance(told, TwinList)}
