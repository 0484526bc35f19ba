"""The runs that viewers have open, cached: each round is read from the repository once for all viewers."""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from cloud_server.dependencies import Cloud
from cloud_server.nodes.registry import Registry
from cloud_server.nodes.twin_client import twins_at, visits_at
from shared.core.bounds import LARGEST_EDGES
from shared.core.errors import BadInput, Conflict
from shared.core.number_sets import NumberSet
from shared.plots.history import RunHistory, VisitSummary
from shared.results.reader import read_edges, read_visits
from shared.results.run_sums import RunSums
from shared.run_records.rounds import EdgeRow, RoundDetail, RoundInfo
from shared.run_records.runs import RunInfo, SeatInfo
from shared.run_records.visits import VisitRow
from shared.simulation.digital_twin import Twin

A = TypeVar("A")
Ask = Callable[[Registry, str, str], Coroutine[Any, Any, A]]
SEATS_EVERY_S = 2.0
"""Shortest time between two reads of a run's placement and twins."""
EDGES_TIMEOUT_S = 2.0
"""Longest wait for an edge's digital twins, or visits in flight; a page then goes without them."""
SHOWN_SEATS = 1000
"""Most devices of a run that the pages show at a time."""
_MAX_RUNS = 16
"""Runs in the cache; the least recently viewed one is dropped first."""
_MAX_VISITS = 50
"""Latest visits kept per seat."""


@dataclass
class RunView:
    """One run as the pages show it.

    Attributes:
        info: the run's status and totals.
        rounds: the committed rounds, with the evaluations finished so far.
        visits: the visits of all training rounds, summarised for pictures.
        sums: the same by device and by edge.
        last_visits: the latest visits by seat, as (round, visit).
        newest: the last training round with its visits.
        seats: the placement of the shown seats; empty before the run has started.
        hosted: by agent, its seats, shown or not.
        twins: digital twins by edge; empty unless the run keeps twins and is running.
        visits_in_flight: by seat, how many versions old the model of its visit in flight is; empty unless devices are
            asynchronous and the run is running.
        in_flight: where the cloud does not wait for all edges, by home edge the version of the model that its order in
            flight carries.
        seats_at: when seats, twins and visits in flight were read (monotonic seconds).
        tested: the final evaluation that `sums` has the scores of: the number of rounds before it.
        reading: held while seats, or the final evaluation, are read.
    """

    info: RunInfo
    rounds: tuple[RoundInfo, ...] = ()
    visits: list[VisitSummary] = field(default_factory=list)
    sums: RunSums = field(init=False)
    last_visits: dict[int, list[tuple[int, VisitRow]]] = field(default_factory=dict)
    newest: RoundDetail | None = None
    seats: tuple[SeatInfo, ...] = ()
    hosted: dict[str, NumberSet] = field(default_factory=dict)
    twins: dict[str, tuple[Twin, ...]] = field(default_factory=dict)
    visits_in_flight: dict[int, int] = field(default_factory=dict)
    in_flight: dict[int, int] = field(default_factory=dict)
    seats_at: float = -math.inf
    tested: int | None = None
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def __post_init__(self) -> None:
        self.sums = RunSums(self.info.headline)

    @property
    def shows_all(self) -> bool:
        """Whether all seats are shown; of very many it is those that were visited in the newest round."""
        return (self.info.spec.max_devices or 0) <= SHOWN_SEATS

    @property
    def shown_seats(self) -> NumberSet:
        """Numbers of the seats to show."""
        if self.shows_all or self.newest is None:
            return NumberSet(range(SHOWN_SEATS + LARGEST_EDGES))
        return NumberSet(islice(sorted({row.seat for row in self.newest.seats}), SHOWN_SEATS))

    @property
    def history(self) -> RunHistory:
        """The records from which the run's pictures are made."""
        return RunHistory(self.info, self.rounds, tuple(self.visits))

    def add_round(self, detail: RoundDetail) -> None:
        """Add a committed training round; rounds are added in order."""
        self.newest = detail
        self.sums.add_edges(detail.kind, detail.edges)
        for row in detail.seats:
            self.sums.add_visit(detail.kind, row)
            rest = (row.outcome, row.label, row.figures, row.reason)
            self.visits.append(VisitSummary(detail.round_no, row.seat, row.edge, *rest))
            visits = self.last_visits.setdefault(row.seat, [])
            visits.append((detail.round_no, row))
            del visits[:-_MAX_VISITS]


class RunViews:
    """Cache of the runs that viewers have open."""

    def __init__(self, cloud: Cloud) -> None:
        self.cloud = cloud
        self._runs: OrderedDict[str, RunView] = OrderedDict()
        self._lock = asyncio.Lock()

    async def run(self, run_id: str) -> RunView:
        """The current view of a run.

        Raises:
            NotFound: no run has that id.
            StoreUnavailable: the store does not answer.
        """
        info = await self.cloud.runs.info(run_id)
        async with self._lock:
            view = self._runs.get(info.run)
            if view is None or view.info.rounds > info.rounds or view.info.metrics != info.metrics:
                view = RunView(info)
            if view.info != info or not view.rounds:
                await self._add_new_rounds(view)
            view.info, view.in_flight = info, self.cloud.runs.in_flight(info.run)
            self._runs[info.run] = view
            self._runs.move_to_end(info.run)
            while len(self._runs) > _MAX_RUNS:
                self._runs.popitem(last=False)
        return view

    async def _add_new_rounds(self, view: RunView) -> None:
        repository, run_id = self.cloud.repository, view.info.run
        last = view.newest.round_no if view.newest else 0
        view.rounds = tuple(await repository.rounds(run_id))
        trained = max((row.round_no for row in view.rounds if row.kind == "train"), default=0)
        async for detail in repository.details(run_id, range(last + 1, trained + 1)):
            if detail.kind == "train":
                view.add_round(detail)

    async def with_seats(self, run_id: str) -> RunView:
        """The view of a run with placement and digital twins, which are read at most every `SEATS_EVERY_S` seconds."""
        view = await self.run(run_id)
        async with view.reading:  # a second viewer waits for what the first one reads
            if time.monotonic() - view.seats_at >= SEATS_EVERY_S:
                await self._read_seats(view)
        return view

    async def _read_seats(self, view: RunView) -> None:
        try:
            view.seats = await self.cloud.runs.seats(view.info.run, view.shown_seats)
        except (Conflict, BadInput):  # not started yet, or its data is not here
            view.seats = ()
        view.hosted = (await self.cloud.repository.placement(view.info.run)).agents
        spec = view.info.spec
        twins, visits = await asyncio.gather(
            self._from_edges(view.info, twins_at, if_any=spec.keeps_twins),
            self._from_edges(view.info, visits_at, if_any=spec.sync.devices.asynchronous),
        )
        view.twins = {edge: answer.twins for edge, answer in twins.items()}
        view.visits_in_flight = {seat: age for answer in visits.values() for seat, age in answer.ages.items()}
        view.seats_at = time.monotonic()

    async def add_final_scores(self, view: RunView) -> None:
        """Add the scores of a run's final evaluation to its sums, if that is over.

        Raises:
            NotFound: its results folder cannot be read.
        """
        async with view.reading:
            if view.info.status == "completed" and view.tested != view.info.rounds:
                folder = self.cloud.results.folder(view.info.run)
                visits, edges = await asyncio.to_thread(_final_evaluation, folder)
                for visit in visits:
                    view.sums.add_visit("evaluate", visit)
                view.sums.add_edges("evaluate", edges)
                view.tested = view.info.rounds

    async def _from_edges(self, info: RunInfo, ask: Ask[A], *, if_any: bool) -> dict[str, A]:
        """The answers of the live edges that answer in time, while the run is running."""
        if not if_any or info.status != "running":
            return {}
        registry = self.cloud.registry
        edges = registry.live_edges()
        requests = (asyncio.wait_for(ask(registry, edge, info.run), EDGES_TIMEOUT_S) for edge in edges)
        answers = zip(edges, await asyncio.gather(*requests, return_exceptions=True), strict=True)
        return {edge: answer for edge, answer in answers if not isinstance(answer, BaseException)}


def _final_evaluation(folder: Path) -> tuple[list[VisitRow], list[EdgeRow]]:
    """The devices and edges in the last test of a run, which only its results folder has."""
    visits = [visit for _, visit in read_visits(folder, "evaluate")]
    return visits, [row for _, kind, row in read_edges(folder) if kind == "evaluate"]
