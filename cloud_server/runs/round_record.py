"""The record of a round: what each edge and each seat did, and what was lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from cloud_server.runs.edge_client import EdgeReply
from cloud_server.runs.placement import Placement
from cloud_server.runs.round_map import RoundMap
from shared.core.scores import Score, Spread
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.messages import Failure, RoundAnswer
from shared.run_records.rounds import EdgeRow, RoundDetail
from shared.run_records.visits import FailureInfo, SeatRow, VisitRecord, flat_scores
from shared.simulation.cost_model import LinkUse, link_cost


@dataclass(frozen=True)
class Answers:
    """What came of the orders of a round: by home, an edge's answer or its failure."""

    replies: dict[int, EdgeReply]
    failed: dict[int, Failure]

    def lost_seats(self, chart: RoundMap, retired: Mapping[int, str]) -> dict[int, Failure]:
        """The seats whose contribution went with their edge."""
        return {
            seat: failure
            for home, failure in self.failed.items()
            for seat in chart.seats_at(home)
            if seat not in retired
        }


@dataclass(frozen=True)
class Recorder:
    """Writes down one round.

    Args:
        lab: of the run.
        chart: who visited whom.
        binding: who sat where.
        retired: seats that took no part.
        ctx: of the round.
        clock_s: the simulated instant at which it began.
    """

    experiment: Experiment
    round_map: RoundMap
    placement: Placement
    retired: Mapping[int, str]
    ctx: Context
    clock_s: float

    def detail(
        self,
        answers: Answers,
        *,
        kind: Literal["train", "evaluate"],
        model_sha256: str,
        wall_s: float,
        attempts: int,
        figures: Mapping[str, Any],
    ) -> RoundDetail:
        """The whole record of the round; `figures` are the cloud's own."""
        replies = answers.replies
        lines = [line for reply in replies.values() for line in reply.answer.lines]
        train = sum((line.train for line in lines if line.train), Score(n=0, n_correct=0, loss_sum=0.0))
        edges, clients = self._edge_rows(answers), self._spreads(answers)
        return RoundDetail(
            round_no=self.ctx.round_no,
            phase=self.ctx.phase,
            kind=kind,
            attempts=attempts,
            n_visits=sum(line.outcome != "used_late" for line in lines),
            n_used=sum(line.outcome in ("used", "used_late") for line in lines),
            labels=dict(sorted(Counter(line.label for line in lines if line.label is not None).items())),
            train_loss=train.loss,
            client_accuracy=clients["own"].mean if "own" in clients else None,
            clients=clients,
            **_bytes_of(lines, edges),
            report_bytes=sum(line.report_bytes for line in lines),
            socket_bytes=sum(reply.socket_bytes for reply in replies.values()),
            simulated_s=self._lasted_s(answers, edges),
            energy_j=sum(line.energy_j for line in lines),
            wall_s=wall_s,
            testing_s=sum(reply.testing_s for reply in replies.values()),
            model_sha256=model_sha256,
            failures=tuple(self._failures(answers)),
            retired={seat: why for reply in replies.values() for seat, why in reply.answer.retired.items()},
            figures=_figures(answers, figures),
            edges=edges,
            seats=self._seat_rows(answers),
        )

    def _lasted_s(self, answers: Answers, edges: tuple[EdgeRow, ...]) -> float:
        """As long as its slowest edge; where every chosen device was off, until the first is there again."""
        told = [reply.answer for reply in answers.replies.values()]
        lasted = max((row.simulated_s for row in edges), default=0.0)
        if not _all_off([line for answer in told for line in answer.lines]):
            return lasted
        on_s = min((answer.next_on_s for answer in told if answer.next_on_s is not None), default=self.clock_s)
        return max(lasted, on_s - self.clock_s)

    def _failures(self, answers: Answers) -> list[FailureInfo]:
        of_seats = [failure for _, reply in sorted(answers.replies.items()) for failure in reply.answer.failures]
        told = [
            FailureInfo(seat=f.seat, edge=self._edge_name(f.edge), reason=f.reason, detail=f.detail) for f in of_seats
        ]
        return told + [
            FailureInfo(
                edge=self._edge_name(home),
                seats=tuple(seat for seat in self.round_map.seats_at(home) if seat not in self.retired),
                reason=failure.reason,
                detail=failure.detail,
            )
            for home, failure in sorted(answers.failed.items())
        ]

    def _spreads(self, answers: Answers) -> dict[str, Spread]:
        """Over clients, seats or edges; held-out seats are none."""
        told: list[VisitRecord | RoundAnswer[Any]] = []
        for _, reply in sorted(answers.replies.items()):
            told += [line for line in reply.answer.lines if self.experiment.seat(line.seat).role != "held_out"]
            told.append(reply.answer)
        found = {
            which: [score.accuracy for item in told if (score := getattr(item, which)) is not None and score.n]
            for which in ("received", "own")
        }
        for name in self.experiment.spec.test_on:
            scores = [item.own_on[name] for item in told if name in item.own_on]
            found[f"own_on_{name}"] = [score.accuracy for score in scores if score.accuracy is not None]
        return {which: Spread.of(values) for which, values in found.items() if values}

    def _edge_name(self, home: int | None) -> str | None:
        return None if home is None else self.round_map.edges.get(home) or self.round_map.away.get(home)

    # ---- seats

    def _seat_rows(self, answers: Answers) -> tuple[SeatRow, ...]:
        rows = [self._seat_row(home, line) for home, r in sorted(answers.replies.items()) for line in r.answer.lines]
        for seat, failure in sorted(answers.lost_seats(self.round_map, self.retired).items()):
            edge, agent = self._edge_name(failure.edge) or "", self.placement.agents.get(seat)
            profile, reason = self._profile(seat), failure.reason
            rows.append(SeatRow(seat=seat, edge=edge, agent=agent, profile=profile, outcome="failed", reason=reason))
        return tuple(rows)

    def _profile(self, seat: int) -> str:
        """The name of the profile that a seat had."""
        return self.round_map.profiles.get(seat, self.experiment.seat(seat).profile.name)

    def _seat_row(self, home: int, visit: VisitRecord) -> SeatRow:
        agent, profile = self.placement.agents.get(visit.seat), self._profile(visit.seat)
        return SeatRow.of(visit, edge=self._edge_name(home) or "", agent=agent, profile=profile)

    # ---- edges

    def _edge_rows(self, answers: Answers) -> tuple[EdgeRow, ...]:
        """A row for each home: its answer, its failure, or that its devices visited others."""
        rows = []
        for home in sorted({*self.round_map.edges, *self.round_map.away}):
            name = self._edge_name(home) or f"home {home}"
            if home in answers.replies:
                rows.append(self._edge_row(name, home, answers.replies[home]))
            elif home in answers.failed:
                rows.append(EdgeRow(edge=name, home=home, outcome="failed", reason=answers.failed[home].reason))
            else:
                rows.append(EdgeRow(edge=name, home=home, outcome="away", reason="lost"))
        return tuple(rows)

    def _edge_row(self, name: str, home: int, reply: EdgeReply) -> EdgeRow:
        use = LinkUse(down_bytes=reply.down_bytes, up_bytes=reply.up_bytes)
        cost = link_cost(self.experiment.population.edges[home].link, use, self.ctx.at(edge=home).seed)
        return EdgeRow(
            edge=name,
            home=home,
            outcome="used" if reply.answer.n_updates else "idle",
            reason="unavailable" if _all_off(reply.answer.lines) else None,
            n_used=reply.answer.n_updates,
            fresh_state=reply.answer.fresh_state,
            **flat_scores(reply.answer),
            down_bytes=use.down_bytes,
            up_bytes=use.up_bytes,
            down_s=cost.down_s,
            up_s=cost.up_s,
            simulated_s=cost.simulated_s + reply.answer.simulated_s,
        )


def _figures(answers: Answers, cloud: Mapping[str, Any]) -> dict[str, Any]:
    """The algorithm's figures of a round, by home and of the cloud."""
    found = {str(home): reply.answer.figures for home, reply in answers.replies.items() if reply.answer.figures}
    return found | ({"cloud": dict(cloud)} if cloud else {})


def _all_off(lines: Sequence[VisitRecord]) -> bool:
    """Whether somebody was chosen, and everybody chosen was off, or busy with what it is late with."""
    chosen = [line for line in lines if line.outcome != "evaluated"]
    return bool(chosen) and all(line.reason in ("unavailable", "busy") for line in chosen)


def _bytes_of(lines: list[VisitRecord], edges: tuple[EdgeRow, ...]) -> dict[str, int]:
    down, up = sum(line.down_bytes for line in lines), sum(line.up_bytes for line in lines)
    edge_down, edge_up = sum(row.down_bytes for row in edges), sum(row.up_bytes for row in edges)
    return {
        "bytes_up": up + edge_up,
        "bytes_down": down + edge_down,
        "device_bytes_up": up,
        "device_bytes_down": down,
        "edge_bytes_up": edge_up,
        "edge_bytes_down": edge_down,
    }
