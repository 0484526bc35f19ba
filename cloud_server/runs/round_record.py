"""The record of a round: a row for each visit and each edge, totals, and failures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from cloud_server.runs.edge_client import EdgeReply
from cloud_server.runs.placement import Placement
from cloud_server.runs.round_map import RoundMap
from shared.core.number_sets import NumberSet
from shared.core.scores import Score, Spread, Spreads
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure, RoundAnswer
from shared.run_records.groups import group_fields
from shared.run_records.rounds import EdgeRow, RoundDetail
from shared.run_records.visits import FailureInfo, VisitRecord, VisitRow
from shared.simulation.cost_model import LinkUse, link_cost

MAX_LOST_ROWS = 1000
"""Rows of a round for seats whose edge was lost; the failure names all of them."""


@dataclass(frozen=True)
class EdgeReplies:
    """The outcome of a round's orders: by edge, its answer or its failure."""

    replies: dict[int, EdgeReply]
    failed: dict[int, Failure]

    @property
    def each(self) -> list[tuple[int, EdgeReply]]:
        """Every answer with its edge, in the order of the record."""
        return sorted(self.replies.items())

    def lost_seats(self, round_map: RoundMap, retired: Mapping[int, str]) -> dict[int, NumberSet]:
        """By edge that failed, the seats whose contribution was lost with it."""
        return {edge: round_map.seats_at(edge) - NumberSet(retired) for edge in sorted(self.failed)}


@dataclass(frozen=True)
class Recorder:
    """Makes the record of one round.

    Attributes:
        experiment: of the run.
        round_map: which seats visited which edge.
        placement: which agents hosted the seats.
        retired: seats that had retired before.
        ctx: of the round.
        clock_s: simulated seconds of the run at which the round began.
        by_class: whether the record has what evaluations count by class.
    """

    experiment: Experiment
    round_map: RoundMap
    placement: Placement
    retired: Mapping[int, str]
    ctx: Context
    clock_s: float
    by_class: bool = False

    def detail(
        self,
        answers: EdgeReplies,
        *,
        kind: Literal["train", "evaluate"],
        model_sha256: str,
        wall_s: float,
        attempts: int,
        figures: Mapping[str, Any],
    ) -> RoundDetail:
        """The record of the round; `figures` are those of the algorithm at the cloud."""
        replies = [reply for _, reply in answers.each]
        visits = [visit for reply in replies for visit in reply.answer.lines]
        train = sum((visit.train for visit in visits if visit.train), Score.nothing())
        edges, spreads = self._edge_rows(answers), self._spreads(answers)
        clients = spreads.pop(self.experiment.scoring.headline.label)
        return RoundDetail(
            round_no=self.ctx.round_no,
            phase=self.ctx.phase,
            kind=kind,
            attempts=attempts,
            n_visits=sum(visit.outcome != "used_late" for visit in visits),
            n_used=sum(visit.outcome in ("used", "used_late") for visit in visits),
            labels=dict(sorted(Counter(visit.label for visit in visits if visit.label is not None).items())),
            train_loss=train.loss,
            client_accuracy=self._mean_accuracy(answers),
            clients=clients,
            client_metrics={label: found for label, found in spreads.items() if found},
            **_bytes_of(visits, edges),
            report_bytes=sum(visit.report_bytes for visit in visits),
            socket_bytes=sum(reply.socket_bytes for reply in replies),
            simulated_s=self._duration_s(answers, edges),
            energy_j=sum(visit.energy_j for visit in visits) + sum(row.collected_j for row in edges),
            collected_bytes=sum(row.collected_bytes for row in edges),
            collected_j=sum(row.collected_j for row in edges),
            telemetry_bytes=sum(reply.answer.telemetry_bytes for reply in replies),
            telemetry_j=sum(reply.answer.telemetry_j for reply in replies),
            wall_s=wall_s,
            testing_s=sum(reply.testing_s for reply in replies),
            model_sha256=model_sha256,
            failures=tuple(self._failures(answers)),
            retired={seat: why for reply in replies for seat, why in reply.answer.retired.items()},
            figures=_figures(answers, figures),
            edges=edges,
            seats=self._seat_rows(answers),
        )

    def _duration_s(self, answers: EdgeReplies, edges: tuple[EdgeRow, ...]) -> float:
        """Simulated seconds of the slowest edge; if all chosen devices were off, until the first is on again."""
        found = [reply.answer for _, reply in answers.each]
        lasted = max((row.simulated_s for row in edges), default=0.0)
        if not all_off([visit for answer in found for visit in answer.lines]):
            return lasted
        on_s = min((answer.next_on_s for answer in found if answer.next_on_s is not None), default=self.clock_s)
        return max(lasted, on_s - self.clock_s)

    def _failures(self, answers: EdgeReplies) -> list[FailureInfo]:
        of_seats = [failure for _, reply in answers.each for failure in reply.answer.failures]
        infos = [
            FailureInfo(seat=f.seat, edge=self._edge_name(f.edge), reason=f.reason, detail=f.detail) for f in of_seats
        ]
        return infos + [
            FailureInfo(
                edge=self._edge_name(edge),
                seats=seats,
                reason=answers.failed[edge].reason,
                detail=answers.failed[edge].detail,
            )
            for edge, seats in answers.lost_seats(self.round_map, self.retired).items()
        ]

    def _spreads(self, answers: EdgeReplies) -> dict[str, Spreads]:
        """By label, how each metric spreads over clients (seats and edges), without held-out seats."""
        scoring, members = self.experiment.scoring, self._clients(answers)
        scores = {which: [getattr(item, which) for item in members] for which in ("received", "own")}
        for name in self.experiment.spec.test_on:
            scores[f"own_on_{name}"] = [item.own_on.get(name) for item in members]
        found: dict[str, Spreads] = {}
        for each in scoring.metrics:
            better, spreads = each.metric.higher_is_better, found.setdefault(each.label, {})
            for which, own in scores.items():
                if values := [value for score in own if (value := scoring.value(score, each)) is not None]:
                    spreads[which] = Spread.of(values, higher_is_better=better)
        return found

    def _mean_accuracy(self, answers: EdgeReplies) -> float | None:
        """The unweighted mean over clients of their own models' accuracies."""
        found = [self.experiment.scoring.accuracy(item.own) for item in self._clients(answers) if item.own is not None]
        values = [accuracy for accuracy in found if accuracy is not None]
        return sum(values) / len(values) if values else None

    def _clients(self, answers: EdgeReplies) -> list[VisitRecord | RoundAnswer[Any]]:
        """What has the scores of clients: the visits of seats that are not held out, and the answers of edges."""
        role, members = self.experiment.population.role, list[VisitRecord | RoundAnswer[Any]]()
        for _, reply in answers.each:
            members += [visit for visit in reply.answer.lines if role(visit.seat) != "held_out"]
            members.append(reply.answer)
        return members

    def _edge_name(self, edge: int | None) -> str | None:
        return None if edge is None else self.round_map.edges.get(edge) or self.round_map.away.get(edge)

    # ---- seats

    def _seat_rows(self, answers: EdgeReplies) -> tuple[VisitRow, ...]:
        rows = [self._seat_row(edge, visit) for edge, r in answers.each for visit in r.answer.lines]
        lost = sorted(
            (seat, edge)
            for edge, seats in answers.lost_seats(self.round_map, self.retired).items()
            for seat in islice(seats, MAX_LOST_ROWS)
        )
        return (
            *rows,
            *(self._lost_row(edge, seat, answers.failed[edge].reason) for seat, edge in lost[:MAX_LOST_ROWS]),
        )

    def _lost_row(self, edge: int, seat: int, reason: str) -> VisitRow:
        return VisitRow(
            seat=seat,
            edge=self._edge_name(edge) or "",
            agent=self.placement.agent_of(seat),
            profile=self._profile(edge, seat),
            outcome="failed",
            reason=reason,
            **group_fields(self.experiment.groups_of_seat(seat)),
        )

    def _profile(self, edge: int, seat: int) -> str:
        """The name of the profile that a seat had in the round."""
        of_agent = self.round_map.placements[edge].profile(seat) if edge in self.round_map.edges else None
        return of_agent or self.experiment.seat(seat).profile.name

    def _seat_row(self, edge: int, visit: VisitRecord) -> VisitRow:
        agent, profile = self.placement.agent_of(visit.seat), self._profile(edge, visit.seat)
        scores = self.experiment.scoring.row(visit, by_class=self.by_class)
        more = {**scores, **group_fields(self.experiment.groups_of_seat(visit.seat))}
        return VisitRow.of(visit, more, edge=self._edge_name(edge) or "", agent=agent, profile=profile)

    # ---- edges

    def _edge_rows(self, answers: EdgeReplies) -> tuple[EdgeRow, ...]:
        """A row for each edge: its answer, its failure, or that its devices visited other edges."""
        rows = []
        for edge in sorted({*self.round_map.edges, *self.round_map.away}):
            name = self._edge_name(edge) or f"edge number {edge}"
            if edge in answers.replies:
                rows.append(self._edge_row(name, edge, answers.replies[edge]))
            elif edge in answers.failed:
                rows.append(EdgeRow(edge=name, home=edge, outcome="failed", reason=answers.failed[edge].reason))
            else:
                rows.append(EdgeRow(edge=name, home=edge, outcome="away", reason="lost"))
        return tuple(rows)

    def _edge_row(self, name: str, edge: int, reply: EdgeReply) -> EdgeRow:
        return edge_row(self.experiment, self.ctx.at(edge=edge), name, reply, by_class=self.by_class)


def edge_row(experiment: Experiment, ctx: Context, name: str, reply: EdgeReply, *, by_class: bool = False) -> EdgeRow:
    """The row of an edge that has answered; the context is that of its order, at the edge."""
    edge = reply.answer.edge
    use = LinkUse(down_bytes=reply.down_bytes, up_bytes=reply.up_bytes)
    cost = link_cost(experiment.population.edges[edge].link, use, ctx.seed)
    return EdgeRow(
        edge=name,
        home=edge,
        outcome="used" if reply.answer.n_updates else "idle",
        reason="unavailable" if all_off(reply.answer.lines) else None,
        n_used=reply.answer.n_updates,
        fresh_state=reply.answer.fresh_state,
        **experiment.scoring.row(reply.answer, by_class=by_class),
        **group_fields(experiment.groups_of_edge(edge)),
        down_bytes=use.down_bytes,
        up_bytes=use.up_bytes,
        down_s=cost.down_s,
        up_s=cost.up_s,
        simulated_s=cost.simulated_s + reply.answer.simulated_s,
        collected_bytes=reply.answer.collected_bytes,
        collected_j=reply.answer.collected_j,
        telemetry_bytes=reply.answer.telemetry_bytes,
        telemetry_j=reply.answer.telemetry_j,
    )


def _figures(answers: EdgeReplies, cloud: Mapping[str, Any]) -> dict[str, Any]:
    """The algorithm's figures of a round, by edge and of the cloud."""
    found = {str(edge): reply.answer.figures for edge, reply in answers.each if reply.answer.figures}
    return found | ({"cloud": dict(cloud)} if cloud else {})


def all_off(visits: Sequence[VisitRecord]) -> bool:
    """Whether devices were chosen and all of them were off, or still busy with an earlier visit."""
    chosen = [visit for visit in visits if visit.outcome != "evaluated"]
    return bool(chosen) and all(visit.reason in ("unavailable", "busy") for visit in chosen)


def _bytes_of(visits: list[VisitRecord], edges: tuple[EdgeRow, ...]) -> dict[str, int]:
    down, up = sum(visit.down_bytes for visit in visits), sum(visit.up_bytes for visit in visits)
    up += sum(row.collected_bytes for row in edges)
    edge_down, edge_up = sum(row.down_bytes for row in edges), sum(row.up_bytes for row in edges)
    return {
        "bytes_up": up + edge_up,
        "bytes_down": down + edge_down,
        "device_bytes_up": up,
        "device_bytes_down": down,
        "edge_bytes_up": edge_up,
        "edge_bytes_down": edge_down,
    }
