"""One run, from its last committed round until it is complete or told to pause or stop."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import Any, Literal

from cloud_server.archive import Archive, Committed, Happening, now
from cloud_server.edges import Edges
from cloud_server.folder import ResultsFolder
from cloud_server.judge import Judge, over_clients
from cloud_server.registry import Registry
from cloud_server.rounds import CloudRound
from cloud_server.seating import Move, Table
from shared.api import Evaluation, RoundDetail, RunInfo, Status
from shared.context import Ctx
from shared.errors import NotReady
from shared.lab import Lab, Labs
from shared.service import Worker

log = logging.getLogger(__name__)
POLL_S = 0.1
Wish = Literal["run", "pause", "stop"]


@dataclass
class Tools:
    """What the courses of a cloud share."""

    archive: Archive
    registry: Registry
    edges: Edges
    labs: Labs
    worker: Worker
    judge: Judge
    results: ResultsFolder
    settle_s: float


@dataclass
class Course:
    """The training of one run.

    Attributes:
        wish: what somebody asked for; looked at between rounds, `stop` also within.
    """

    tools: Tools
    info: RunInfo
    wish: Wish = "run"
    table: Table | None = None
    lab: Lab | None = None
    began: float = field(default_factory=time.monotonic)
    wall_before_s: float = 0.0
    scores: dict[int, dict[str, Evaluation]] = field(default_factory=dict)
    _heed: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self, wish: Wish) -> None:
        """Ask for another course of things."""
        self.wish = wish
        self._heed.set()

    def wanted(self) -> Wish:
        """What is asked for at this moment."""
        return self.wish

    # ---- the run

    async def run(self) -> None:
        """Train until complete, paused or stopped; the document says which."""
        self.wall_before_s = self.info.wall_s
        await self._become("starting")
        await self._ready()
        if self.wanted() != "run":
            return await self._halt()
        lab, table, committed, guard = await self._begin()
        self.began = time.monotonic()
        await self._become("running")
        while committed.round_no < self.info.num_rounds and self.wanted() == "run":
            committed, guard = await self._round(lab, table, committed, guard)
        await self.tools.judge.finish()
        if self.wanted() != "run":
            await self._halt()
        else:
            await self._complete(lab, table, committed)
        await self._write(lab, table, committed)
        return None

    async def _begin(self) -> tuple[Lab, Table, Committed[Any], str]:
        """The lab, the seating and the last committed state, or the initial one."""
        tools, spec = self.tools, self.info.spec
        found = await tools.archive.binding(self.info.run)
        if not self.info.resolved:
            n_edges, n_devices = len(tools.registry.live_edges()), tools.registry.n_devices()
            spec = spec.resolved(n_devices=n_devices, n_edges=n_edges)
        lab = await tools.worker.run(tools.labs.of, spec)
        self.lab = lab
        self.table = Table(lab.members, tools.registry, found, spec.timeouts.reseat_after_s)
        kept = await tools.archive.committed(self.info.run, lab)
        if kept is not None:
            return lab, self.table, *kept
        self.info = self.info.but(spec=spec, resolved=True)
        moves = self.table.seat_all(spec.num_devices or 1)
        state = lab.algorithm.cloud.init(self._ctx(lab, 0), lab.initial)
        committed = Committed[Any](round_no=0, state=state, bases={}, edge_bases={}, retired={})
        guard = await tools.archive.commit(
            lab, None, committed, self.info, self.table.binding, None, [_told(move) for move in moves]
        )
        return lab, self.table, committed, guard

    def _ctx(self, lab: Lab, round_no: int) -> Ctx:
        phase = lab.phase_of(max(round_no, 1)).name
        return lab.ctx(phase=phase, round_no=round_no, n_clients=len(lab.members.seats))

    # ---- one round

    async def _round(
        self, lab: Lab, table: Table, committed: Committed[Any], guard: str
    ) -> tuple[Committed[Any], str]:
        tools, round_no = self.tools, committed.round_no + 1
        moves = table.refresh()
        await self._enough_devices(lab, table)
        work = CloudRound(self.info.run, round_no, "train", lab, committed, table, tools.edges, tools.worker)
        await tools.archive.event(self.info.run, Happening("round.started", {"round_no": round_no}))
        done = await self._unless_stopped(work)
        if done is None:
            return committed, guard
        after, detail = done
        self._count(detail)
        events = [_told(move) for move in moves] + _events_of(detail)
        guard = await tools.archive.commit(lab, guard, after, self.info, table.binding, detail, events)
        last = round_no == self.info.num_rounds
        if last or round_no % lab.spec.eval_every == 0:
            await tools.judge.submit(self.info.run, lab, self._ctx(lab, round_no), after, final=last)
        await tools.results.round_done(self.info, lab, table, detail)
        if round_no % 20 == 0:
            await tools.archive.collect()
        return after, guard

    async def _unless_stopped(self, work: CloudRound) -> tuple[Committed[Any], RoundDetail] | None:
        """The round's result, None if it was stopped in the middle."""
        running = asyncio.create_task(work.run())
        try:
            while not running.done():
                self._heed.clear()
                heeding = asyncio.create_task(self._heed.wait())
                await asyncio.wait({running, heeding}, return_when=asyncio.FIRST_COMPLETED)
                heeding.cancel()
                if self.wish == "stop" and not running.done():
                    return None
            return running.result()
        finally:
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def _count(self, detail: RoundDetail) -> None:
        info = self.info
        self.info = info.but(
            rounds=detail.round_no,
            phase=detail.phase,
            bytes_up=info.bytes_up + detail.bytes_up,
            bytes_down=info.bytes_down + detail.bytes_down,
            simulated_s=info.simulated_s + detail.simulated_s,
            wall_s=self._wall_s(),
            model_sha256=detail.model_sha256 or info.model_sha256,
        )

    def _wall_s(self) -> float:
        return self.wall_before_s + time.monotonic() - self.began

    # ---- the end

    async def _complete(self, lab: Lab, table: Table, committed: Committed[Any]) -> None:
        """After the last round every seat evaluates."""
        tools = self.tools
        work = CloudRound(
            self.info.run, committed.round_no, "evaluate", lab, committed, table, tools.edges, tools.worker
        )
        done = await self._unless_stopped(work)
        if done is None:
            return await self._halt()
        held_out = {seat.number for seat in lab.members.seats if seat.role == "held_out"}
        scores = (await tools.archive.evaluations(self.info.run)).get(committed.round_no, {})
        final = {**scores, **over_clients(done[1], held_out)}
        key = "global" if lab.algorithm.headline == "global model" else "clients_own"
        head = final.get(key) or final.get("clients_received")
        self.info = self.info.but(
            final=final,
            accuracy=head.accuracy if head else None,
            loss=head.loss if head else None,
            accuracy_of=lab.algorithm.headline,
            wall_s=self._wall_s(),
            models=tuple(lab.algorithm.cloud.models(self._ctx(lab, committed.round_no), committed.state)),
        )
        await tools.results.round_done(self.info, lab, table, done[1])
        await self._become("completed")
        return None

    async def _halt(self) -> None:
        scores = await self.tools.archive.evaluations(self.info.run)
        newest = scores.get(max(scores, default=0), {}).get("global")
        if newest is not None:
            self.info = self.info.but(accuracy=newest.accuracy, loss=newest.loss)
        self.info = self.info.but(wall_s=self._wall_s())
        await self._become("paused" if self.wish == "pause" else "stopped")

    async def _write(self, lab: Lab, table: Table, committed: Committed[Any]) -> None:
        rounds = await self.tools.archive.rounds(self.info.run)
        models = lab.algorithm.cloud.models(self._ctx(lab, committed.round_no), committed.state)
        await self.tools.results.ended(self.info, lab, table, rounds, models.get("global"))

    async def _become(self, status: Status, reason: str | None = None) -> None:
        self.info = self.info.but(status=status, reason=reason)
        data = {"status": status, "reason": reason, "rounds": self.info.rounds, "at": now()}
        await self.tools.archive.save(self.info, Happening("run.status", data))

    # ---- who must be there

    async def _ready(self) -> None:
        """Wait for edges and devices.

        Raises:
            NotReady: they did not come in time; says how many there are of how many.
        """
        spec, registry = self.info.spec, self.tools.registry
        ends = time.monotonic() + spec.timeouts.ready_s
        told = ""
        while self.wanted() == "run":
            n_edges, room = len(registry.live_edges()), registry.n_devices()
            need_edges, need = spec.num_edges or 1, spec.num_devices or spec.min_devices
            settled = time.monotonic() - registry.changed_at >= self.tools.settle_s
            known = spec.num_edges is not None and spec.num_devices is not None
            if n_edges >= need_edges and room >= need and (known or settled):
                return
            if n_edges >= need_edges and room >= spec.min_devices and settled:
                return
            missing = f"{n_edges} of {need_edges} edges, room for {room} of {need} devices are there"
            if time.monotonic() > ends:
                raise NotReady(f"after {spec.timeouts.ready_s:g} s {missing}")
            if missing != told:
                await self._become("starting", f"waiting: {missing}")
                told = missing
            await asyncio.sleep(POLL_S)

    async def _enough_devices(self, lab: Lab, table: Table) -> None:
        """Before a round, at least `min_devices` seats must have a live agent; else wait for them."""
        ends = time.monotonic() + lab.spec.timeouts.ready_s
        waited = False
        while self.wanted() == "run":
            absent = table.absent()
            n_live = len(table.binding.agents) - len(absent)
            if n_live >= lab.spec.min_devices and self.tools.registry.live_edges():
                if waited:
                    await self._become("running")
                return
            what = f"{n_live} of at least {lab.spec.min_devices} devices are alive; not heard: seats {list(absent)}"
            if time.monotonic() > ends:
                raise NotReady(f"after {lab.spec.timeouts.ready_s:g} s {what}")
            if not waited:
                await self._become("running", f"waiting: {what}")
                waited = True
            await asyncio.sleep(POLL_S)
            table.refresh()


def _told(move: Move) -> Happening:
    if move.before is None:
        return Happening("seat.taken", {"seat": move.seat, "agent": move.agent})
    return Happening("seat.moved", {"seat": move.seat, "agent": move.agent, "from": move.before})


def _events_of(detail: RoundDetail) -> list[Happening]:
    short = detail.model_dump(mode="json", exclude={"seats", "failures", "edges", "figures"})
    events = [Happening("round.committed", short)]
    for failure in detail.failures:
        events.append(Happening("contribution.lost", {"round_no": detail.round_no, **failure.model_dump()}))
    for seat, reason in detail.retired.items():
        events.append(
            Happening("seat.retired", {"round_no": detail.round_no, "seat": seat, "reason": reason})
        )
    return events
