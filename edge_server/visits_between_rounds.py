"""The visits in flight at an edge, also between two rounds, while its process lives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from edge_server.rounds.edge_checkpoint import EdgeMemory
from edge_server.rounds.flights import Flights, StoredVisits
from shared.federation.experiment import Experiment
from shared.federation.messages import RoundOrder
from shared.storage.states import Version

MOST = 64
"""Runs and edges whose visits go on between their rounds; of others they are ordered again."""


@dataclass
class VisitsBetweenRounds:
    """Visits in flight by run and edge; after a round with the version of the edge's state to which they belong."""

    _kept: dict[tuple[str, int], tuple[Version, Flights]] = field(default_factory=dict)
    _taken: dict[tuple[str, int], Flights] = field(default_factory=dict)

    def take(self, order: RoundOrder[Any], memory: EdgeMemory) -> tuple[Flights, StoredVisits[Any] | None]:
        """The visits in flight with which a round begins, and those that have to be ordered again."""
        version, flights = self._kept.pop((order.run_id, order.edge), (None, Flights()))
        if version is not None and version == order.base:
            stored = None
        else:
            flights.close()
            flights, stored = Flights(), memory.stored_visits
        self._taken[order.run_id, order.edge] = flights
        while len(self._taken) > MOST:
            self._taken.pop(next(iter(self._taken)))
        return flights, stored

    def ages(self, run_id: str) -> dict[int, int]:
        """By seat with a visit of a run in flight, how many versions older its model is than the edge's present one."""
        found = [flights for (run, _), flights in self._taken.items() if run == run_id]
        return {seat: own.version - flight.version for own in found for seat, flight in own.by_seat.items()}

    def keep(self, experiment: Experiment, order: RoundOrder[Any], flights: Flights) -> StoredVisits[Any]:
        """Keeps the visits in flight after a round; returns their record."""
        self._kept[order.run_id, order.edge] = Version(order.round_no), flights
        while len(self._kept) > MOST:
            self._kept.pop(next(iter(self._kept)))[1].close()
        return flights.stored(experiment.algorithm.message_type)

    def close(self, belongs: Callable[[str], bool] = lambda run_id: True) -> None:
        """Ends the visits of all runs, or of some."""
        for key in [key for key in self._kept if belongs(key[0])]:
            self._kept.pop(key)[1].close()
        self._taken = {key: flights for key, flights in self._taken.items() if not belongs(key[0])}
