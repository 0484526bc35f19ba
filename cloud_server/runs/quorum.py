"""The quorum of a round: whether enough of its visits were answered, counted over all edges together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from cloud_server.runs.round_map import RoundMap
from cloud_server.runs.round_record import EdgeReplies
from shared.core.errors import NotReady
from shared.core.number_sets import EMPTY, NumberSet
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.selection import n_wanted
from shared.federation.update_weights import n_buffered
from shared.run_records.visits import SIMULATED_LOSSES, VisitRecord
from shared.spec.sync_rules import edges_judge_quorum

NAMED = 10
"""Lost visits that the message of a missed quorum names."""


class QuorumMissed(NotReady):
    """Too few visits or edges answered. Another attempt can only help if the round map has changed."""


@dataclass(frozen=True)
class RoundQuorum:
    """Judges the answers to the orders of a round.

    Attributes:
        experiment: of the run.
        ctx: of the round.
        round_map: which seats visit which edge.
        retired: seats that had retired before.
    """

    experiment: Experiment
    ctx: Context
    round_map: RoundMap
    retired: Mapping[int, str]

    def require(self, answers: EdgeReplies, *, trains: bool) -> None:
        """Checks that enough visits were answered in each edge round; of an evaluation, that enough edges answered.

        Visits that simulation or spec prevented count on neither side; an edge that failed has lost those that the
        spec's selection wants of it. Where edges judge their own visits, the quorum counts edges.

        Raises:
            QuorumMissed: names what was lost.
        """
        spec = self.experiment.spec
        if not trains or edges_judge_quorum(spec) or not answers.replies:
            n_answered, n = len(answers.replies), len(answers.replies) + len(answers.failed)
            self._check("edges", n_answered, n, max(spec.quorum_of(n), 1), self._why(answers) or "no edge is alive")
            return
        away = sum(map(self._n_expected, answers.failed))
        lines = [line for edge, reply in answers.each for line in self._counted(edge, reply.answer.lines)]
        lost = [line for line in lines if self._is_lost(line)]
        n_lost, n_visits = (Counter(line.edge_round for line in some) for some in (lost, lines))
        for edge_round in sorted({0, *n_visits}):
            n = n_visits[edge_round] + away
            n_answered = n_visits[edge_round] - n_lost[edge_round]
            seats = {line.seat for line in lost if line.edge_round == edge_round}
            self._check("tasks", n_answered, n, spec.quorum_of(n), self._why(answers, seats))

    def _check(self, what: str, n_answered: int, n: int, need: int, why: str) -> None:
        if n_answered < need:
            raise QuorumMissed(f"round {self.ctx.round_no}: quorum of {need} of {n} {what} missed: {why}")

    def _counted(self, edge: int, lines: Iterable[VisitRecord]) -> Iterator[VisitRecord]:
        """The visits of an edge's devices that train and were asked to, whose answers this round awaited."""
        population, present = self.experiment.population, self.round_map.present_at(edge)
        for line in lines:
            simulated = line.outcome == "failed" and line.reason in SIMULATED_LOSSES
            unsent = line.outcome == "refused" and not line.down_bytes  # too late before it began
            if line.outcome in ("evaluated", "used_late") or simulated or unsent:
                continue
            if line.seat in present and line.seat not in population.held_out:
                yield line

    def _is_lost(self, line: VisitRecord) -> bool:
        """Whether a visit was lost; where shares are planned, others do those of a lost one."""
        return line.outcome == "failed" and not self.experiment.spec.plans

    def _n_expected(self, edge: int) -> int:
        """The number of visits that an edge which failed would have awaited in an edge round."""
        population, sync = self.experiment.population, self.experiment.spec.sync.devices
        there = self.round_map.present_at(edge) - population.held_out - NumberSet(self.retired)
        if not len(there):
            return 0
        if sync.asynchronous:
            return n_buffered(sync, len(there))
        return n_wanted(self.ctx.at(edge=edge), population.seats.among(there))

    def _why(self, answers: EdgeReplies, seats: Iterable[int] = EMPTY) -> str:
        """What was lost: edges, then these seats."""
        wanted = set(seats)
        failures = {f.seat: f for _, reply in answers.each for f in reply.answer.failures if f.seat in wanted}
        lost = [f"device {seat}: {f.reason} ({f.detail})" for seat, f in sorted(failures.items())][:NAMED]
        return "; ".join([failure.detail for _, failure in sorted(answers.failed.items())] + lost)
