"""The record of a round whose cloud does not wait for all edges: an edge may have answered an older model, or twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloud_server.runs.edge_client import EdgeReply
from cloud_server.runs.flights import context_of
from cloud_server.runs.loose_checkpoint import Landed
from cloud_server.runs.round_map import RoundMap
from cloud_server.runs.round_record import EdgeReplies, Recorder, edge_row
from shared.core.number_sets import NumberSet
from shared.run_records.rounds import EdgeRow


@dataclass(frozen=True)
class LooseReplies(EdgeReplies):
    """The flights that ended in a round, in the order in which they counted.

    Attributes:
        landed: the flights.
        begin_s: simulated seconds of the run at which the round began.
    """

    landed: Sequence[Landed] = ()
    begin_s: float = 0.0

    @classmethod
    def of(cls, landed: Sequence[Landed], begin_s: float) -> LooseReplies:
        """The flights of a round that began at this instant."""
        failed = {flight.flight.edge: flight.failure for flight in landed if flight.failure is not None}
        return cls({}, failed, landed, begin_s)

    @property
    def each(self) -> list[tuple[int, EdgeReply]]:
        """See `EdgeReplies.each`."""
        found = [(landed.flight.edge, landed.reply(self.begin_s)) for landed in self.landed]
        return [(edge, reply) for edge, reply in found if reply is not None]

    def lost_seats(self, round_map: RoundMap, retired: Mapping[int, str]) -> dict[int, NumberSet]:
        """See `EdgeReplies.lost_seats`."""
        lost = {landed.flight.edge: landed.flight.seats for landed in self.landed if landed.failure is not None}
        return {edge: lost[edge] - NumberSet(retired) for edge in sorted(lost)}


@dataclass(frozen=True)
class LooseRecorder(Recorder):
    """Makes the record of one round.

    Attributes:
        landed: the flights that ended in the round.
        lasted_s: simulated seconds from the last version of the global model to this one.
    """

    landed: Sequence[Landed] = ()
    lasted_s: float = 0.0

    def _duration_s(self, answers: EdgeReplies, edges: tuple[EdgeRow, ...]) -> float:
        return self.lasted_s

    def _edge_rows(self, answers: EdgeReplies) -> tuple[EdgeRow, ...]:
        """A row for each flight that ended, and for each edge that is not served; none for those still in flight."""
        rows = [self._landed_row(landed) for landed in self.landed]
        away = self.round_map.away.keys() - {landed.flight.edge for landed in self.landed}
        return (
            *rows,
            *(EdgeRow(edge=self._name(edge), home=edge, outcome="away", reason="lost") for edge in sorted(away)),
        )

    def _landed_row(self, landed: Landed) -> EdgeRow:
        flight, reply = landed.flight, landed.reply(0.0)
        name, since_s = self._name(flight.edge), landed.at_s - flight.clock_s
        begin_s = flight.clock_s - self.clock_s
        old = {"begin_s": begin_s, "staleness": landed.staleness, "staleness_s": since_s}
        if reply is None:
            reason = landed.failure.reason if landed.failure else None
            return EdgeRow(edge=name, home=flight.edge, outcome="failed", reason=reason, **old)
        ctx = context_of(self.experiment, flight).at(edge=flight.edge)
        return edge_row(self.experiment, ctx, name, reply).model_copy(update=old)

    def _name(self, edge: int) -> str:
        return self._edge_name(edge) or f"edge number {edge}"
