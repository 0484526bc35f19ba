"""One cloud round: broadcast -> POST /rounds to every edge at once -> aggregate -> the new state and its record."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any, Literal

from cloud_server.archive import Committed
from cloud_server.edges import EdgeReply, Edges
from cloud_server.seating import Table
from shared import wire
from shared.api import EdgeRow, FailureInfo, RoundDetail, SeatRow
from shared.context import Ctx
from shared.costs import LinkUse, edge_link_s
from shared.errors import NotReady, StrataError, WireError
from shared.lab import Lab
from shared.messages import Failure, RoundAnswer, RoundOrder, Seating, SeatLine
from shared.places import place
from shared.records import Score
from shared.service import Worker
from shared.sound import check_folded
from shared.spec import canonical
from shared.sums import Fold, mean_of
from shared.tensors import digest
from shared.versions import Version
from shared.visit import own

log = logging.getLogger(__name__)


@dataclass
class CloudRound:
    """A round of a run, from its committed state to the next.

    Who is there is looked at once, when the round is made: `places` holds the edge of each home, `absent` the taken
    seats whose agent is lost.
    """

    run_id: str
    round_no: int
    kind: Literal["train", "evaluate"]
    lab: Lab
    before: Committed[Any]
    table: Table
    edges: Edges
    worker: Worker

    def __post_init__(self) -> None:
        self.ctx: Ctx = self.lab.ctx(
            phase=self.lab.phase_of(self.round_no).name, round_no=self.round_no, n_clients=self._n_clients()
        )
        self.hooks = self.lab.algorithm.cloud
        self.places = {home.number: self.table.edge_of(home.number) for home in self.lab.members.homes}
        self.absent = {s: agent for s, agent in self.table.absent().items() if s not in self.before.retired}

    def _n_clients(self) -> int:
        """Training clients of this round: homes where edges are clients, else taken seats that train."""
        if self.lab.spec.client == "edge":
            return len(self.lab.members.homes)
        taken = self.table.binding.agents.keys() - self.before.retired.keys()
        return sum(self.lab.seat(seat).role == "train" for seat in taken)

    async def run(self) -> tuple[Committed[Any], RoundDetail]:
        """Ask every home's edge, aggregate what came; the new state and the record.

        Raises:
            NotReady: no edge is there, or the quorum of edges was missed; names who and why.
        """
        began = time.monotonic()
        homes = [home.number for home in self.lab.members.homes]
        asked = await asyncio.gather(*(self._ask(home) for home in homes))
        replies = {home: found for home, found in zip(homes, asked, strict=True) if isinstance(found, EdgeReply)}
        failed = {home: found for home, found in zip(homes, asked, strict=True) if isinstance(found, Failure)}
        after, model_sha256 = await self.worker.run(self._aggregate, replies, failed)
        return after, self._detail(replies, failed, model_sha256, time.monotonic() - began)

    async def _ask(self, home: int) -> EdgeReply | Failure:
        """One home's answer, or its failure as data."""
        edge = self.places[home]
        if edge is None:
            return Failure(edge=home, reason="no_edge", detail="no edge is alive")
        seating = self.table.seating(self.run_id, home, self.absent)
        try:
            body = await self.worker.run(self._order, home, seating)
            asked = place("rounds", self.run_id, self.round_no, home)
            return await self.edges.round(edge, self.lab, body, seating, self.table.loads(), asked)
        except StrataError as error:
            return Failure(edge=home, reason=error.code, detail=f"{edge}: {error.detail}")
        except Exception as error:
            log.exception("round %s at %s", self.round_no, edge)
            return Failure(edge=home, reason="error", detail=f"{edge}: {type(error).__name__}: {error}")

    def _order(self, home: int, seating: Seating) -> wire.Body:
        seats = {seat.number for seat in self.lab.members.at(home)}
        there = [self.lab.seat(number) for number in sorted(seating.places) if number not in self.before.retired]
        order = RoundOrder[Any](
            run_id=self.run_id,
            round_no=self.round_no,
            spec=self.lab.spec,
            population=self.lab.members.digest,
            seating=wire.digest_of(canonical(seating).encode()),
            phase=self.ctx.phase,
            kind=self.kind,
            n_clients=self.ctx.n_clients,
            edge=home,
            base=self.before.edge_bases.get(home),
            bases={seat: version for seat, version in self.before.bases.items() if seat in seats},
            retired={seat: why for seat, why in self.before.retired.items() if seat in seats},
            broadcast=self.hooks.broadcast(self.ctx, self.before.state, home, there),
        )
        return wire.encode(order)

    def _check(self, home: int, answer: RoundAnswer[Any]) -> None:
        """An edge speaks for the seats of its home only.

        Raises:
            WireError: it speaks of others.
        """
        own_seats = {seat.number for seat in self.lab.members.at(home)}
        told = {line.seat for line in answer.lines} | answer.bases.keys() | answer.retired.keys()
        if answer.edge != home or not told <= own_seats:
            others = f"home {answer.edge}, seats {sorted(told - own_seats)}"
            raise WireError(f"the answer for home {home} speaks of {others}")

    def _require_quorum(self, n_homes: int, failed: dict[int, Failure]) -> None:
        need = self.lab.spec.quorum_of(n_homes)
        if n_homes - len(failed) < need:
            why = "; ".join(failure.detail for failure in failed.values())
            raise NotReady(f"round {self.round_no}: quorum of {need} of {n_homes} edges missed: {why}")

    # ---- the new state

    def _aggregate(self, replies: dict[int, EdgeReply], failed: dict[int, Failure]) -> tuple[Committed[Any], str]:
        """Add up what came; an answer that cannot be added is its edge's failure."""
        state, update = self.before.state, self.lab.algorithm.update
        fold = Fold(update, self.lab.grid, model=self.lab.initial)
        for home in sorted(replies):
            try:
                self._check(home, replies[home].answer)
                self._fold(fold, replies[home].answer)
            except StrataError as error:
                del replies[home]
                failed[home] = Failure(edge=home, reason=error.code, detail=f"{self.places[home]}: {error.detail}")
        self._require_quorum(len(self.places), failed)
        if self.kind == "train":
            mean = mean_of(fold.result(), update, self.lab.grid, model=self.lab.initial)
            if mean is not None:
                state = self.hooks.aggregate(self.ctx, state, own(mean))
        models = self.hooks.models(self.ctx, state)
        return self._after(state, replies), digest(models["global"]) if "global" in models else ""

    def _fold(self, fold: Fold, answer: RoundAnswer[Any]) -> None:
        if answer.folded is not None:
            check_folded(answer.folded, self.lab.algorithm.update, self.lab.grid, self.lab.initial)
            fold.merge(answer.folded)
        elif answer.update is not None:
            fold.add(answer.update, answer.n_samples, answer.n_updates)

    def _after(self, state: Any, replies: dict[int, EdgeReply]) -> Committed[Any]:
        if self.kind == "evaluate":
            return self.before
        bases, edge_bases, retired = (
            dict(self.before.bases),
            dict(self.before.edge_bases),
            dict(self.before.retired),
        )
        for home, reply in replies.items():
            bases |= reply.answer.bases
            retired |= reply.answer.retired
            edge_bases[home] = reply.answer.base or Version(self.round_no)
        return Committed[Any](round_no=self.round_no, state=state, bases=bases, edge_bases=edge_bases, retired=retired)

    # ---- the record

    def _detail(
        self, replies: dict[int, EdgeReply], failed: dict[int, Failure], model_sha256: str, wall_s: float
    ) -> RoundDetail:
        seats = [self._seat_row(home, line) for home in sorted(replies) for line in replies[home].answer.lines]
        seats += [self._absent_row(seat, agent) for seat, agent in self.absent.items()]
        edges = [self._edge_row(home, replies.get(home), failed.get(home)) for home in sorted({*replies, *failed})]
        answers = [reply.answer for reply in replies.values()]
        lines = [line for answer in answers for line in answer.lines]
        train = sum((line.train for line in lines if line.train), Score(n=0, n_correct=0, loss_sum=0.0))
        mine = [line.own.accuracy for line in lines if line.own and line.own.accuracy is not None]
        mine += [a.own.accuracy for a in answers if a.own and a.own.accuracy is not None]
        down, up = sum(line.down_bytes for line in lines), sum(line.up_bytes for line in lines)
        edge_down, edge_up = sum(row.down_bytes for row in edges), sum(row.up_bytes for row in edges)
        return RoundDetail(
            round_no=self.round_no,
            phase=self.ctx.phase,
            kind=self.kind,
            n_visits=len(lines),
            n_used=sum(line.outcome == "used" for line in lines),
            train_loss=train.loss,
            client_accuracy=sum(mine) / len(mine) if mine else None,
            bytes_up=up + edge_up,
            bytes_down=down + edge_down,
            device_bytes_up=up,
            device_bytes_down=down,
            edge_bytes_up=edge_up,
            edge_bytes_down=edge_down,
            socket_bytes=sum(reply.socket_bytes for reply in replies.values()),
            simulated_s=max((row.simulated_s for row in edges), default=0.0),
            wall_s=wall_s,
            model_sha256=model_sha256,
            failures=tuple(self._failures(answers, failed)),
            retired={seat: why for answer in answers for seat, why in answer.retired.items()},
            figures={str(answer.edge): answer.figures for answer in answers if answer.figures},
            edges=tuple(edges),
            seats=tuple(seats),
        )

    def _failures(self, answers: list[RoundAnswer[Any]], failed: dict[int, Failure]) -> list[FailureInfo]:
        found = [failure for answer in answers for failure in answer.failures] + list(failed.values())
        infos = [
            FailureInfo(seat=f.seat, edge=self._edge_name(f.edge), reason=f.reason, detail=f.detail) for f in found
        ]
        return infos + [
            FailureInfo(seat=seat, reason="lost", detail=f"agent {agent} is not heard")
            for seat, agent in self.absent.items()
        ]

    def _edge_name(self, home: int | None) -> str | None:
        return None if home is None else self.places[home] or self.table.binding.edges.get(home)

    def _absent_row(self, seat: int, agent: str) -> SeatRow:
        edge = self._edge_name(self.lab.seat(seat).home) or ""
        return SeatRow(seat=seat, edge=edge, agent=agent, outcome="failed", reason="lost")

    def _seat_row(self, home: int, line: SeatLine) -> SeatRow:
        received, mine, train = line.received, line.own, line.train
        return SeatRow(
            seat=line.seat,
            edge=self._edge_name(home) or "",
            edge_round=line.edge_round,
            wave=line.wave,
            agent=self.table.binding.agents.get(line.seat),
            outcome=line.outcome,
            reason=line.reason,
            label=line.label,
            n_samples=line.n_samples,
            train_loss=train.loss if train else None,
            received_accuracy=received.accuracy if received else None,
            received_loss=received.loss if received else None,
            own_accuracy=mine.accuracy if mine else None,
            own_loss=mine.loss if mine else None,
            n_test=received.n if received else 0,
            down_bytes=line.down_bytes,
            up_bytes=line.up_bytes,
            simulated_s=line.simulated_s,
            fresh_state=line.fresh_state,
            figures=line.figures,
        )

    def _edge_row(self, home: int, reply: EdgeReply | None, failure: Failure | None) -> EdgeRow:
        name = self._edge_name(home) or f"home {home}"
        if reply is None:
            return EdgeRow(edge=name, home=home, outcome="failed", reason=failure.reason if failure else None)
        use = LinkUse(down_bytes=reply.down_bytes, up_bytes=reply.up_bytes)
        received, mine = reply.answer.received, reply.answer.own
        return EdgeRow(
            edge=name,
            home=home,
            outcome="used" if reply.answer.n_updates else "idle",
            n_used=reply.answer.n_updates,
            received_accuracy=received.accuracy if received else None,
            received_loss=received.loss if received else None,
            own_accuracy=mine.accuracy if mine else None,
            own_loss=mine.loss if mine else None,
            down_bytes=use.down_bytes,
            up_bytes=use.up_bytes,
            simulated_s=edge_link_s(self.lab.spec.edge_link, use) + reply.answer.simulated_s,
        )
