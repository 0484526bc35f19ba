"""One run, from its last committed round until it is complete or told to pause or stop."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from cloud_server.runs.events import Happening, moves_told, now, profiles_told, round_told
from cloud_server.runs.final_scores import final_figures
from cloud_server.runs.placement import Move, Table
from cloud_server.runs.readiness import Barrier
from cloud_server.runs.repository import Committed, Due
from cloud_server.runs.results_writer import RoundDone
from cloud_server.runs.round import CloudRound, QuorumMissed
from cloud_server.runs.round_map import chart
from cloud_server.runs.state import Standing, Tools
from shared.federation.context import Ctx
from shared.federation.experiment import Lab
from shared.run_records.rounds import RoundDetail, RoundInfo
from shared.run_records.runs import RunInfo, Status
from shared.runtime.logs import about
from shared.spec.experiment import ExperimentSpec
from shared.spec.missing_domains import without
from shared.training.compute_device import processor_of

MAX_ATTEMPTS = 10
"""At one round, before the run fails with the reason of the last."""
COLLECT_EVERY = 10
"""Rounds between two looks for files that nothing refers to."""
Wish = Literal["run", "pause", "stop"]


@dataclass
class Course:
    """The training of one run.

    Attributes:
        info: the run's document; changed together with the store, under the lock.
        lock: held while a document changes.
        wish: what somebody asked for; looked at between rounds, `stop` also within.
    """

    tools: Tools
    info: RunInfo
    lock: asyncio.Lock
    wish: Wish = "run"
    at: Standing | None = None
    began: float = field(default_factory=time.monotonic)
    wall_before_s: float = 0.0
    _heed: asyncio.Event = field(default_factory=asyncio.Event)

    def ask(self, wish: Wish) -> None:
        """Ask for another course of things."""
        self.wish = wish
        self._heed.set()

    def wanted(self) -> bool:
        """Whether nobody asked for a pause or an end."""
        return self.wish == "run"

    # ---- the run

    async def run(self) -> None:
        """Train until complete, paused or stopped; the document says which."""
        with about(run=self.info.run):
            await self._run()

    async def _run(self) -> None:
        self.wall_before_s = self.info.wall_s
        await self._become("starting")
        barrier = Barrier(self.tools.registry, self.tools.settle_s, self.wanted)
        async for missing in barrier.start(self.info.spec, resumed=self.info.resolved):
            await self._become("starting", f"waiting: {missing}")
        if not self.wanted():
            return await self._halt()
        at = self.at = await self._begin()
        self.began = time.monotonic()
        await self._become("running")
        await self._catch_up(at)
        while not await self._to_the_end(at, barrier):
            pass
        return None

    async def _catch_up(self, at: Standing) -> None:
        """Write down and evaluate what an earlier cloud process committed and did not come to."""
        run_id, archive = self.info.run, self.tools.archive
        written = max(await self.tools.results.last(run_id), 1)  # perhaps in part
        dues = {round_no: (state, due) for round_no, state, due in await archive.due(run_id, at.lab)}
        for row in await archive.rounds(run_id):  # an evaluation may have come after its round was written
            if row.round_no < written:
                await self._write_down(at, row, row.round_no in dues)
        async for detail in archive.details(run_id, range(written, at.committed.round_no + 1)):
            await self._write_down(at, detail, detail.round_no in dues)
        for state, due in dues.values():
            await self._evaluate(at.lab, state, due)

    async def _write_down(self, at: Standing, row: RoundInfo, due: bool) -> None:
        await self.tools.results.round_done(RoundDone(self.info, at.lab, at.table, row, due))

    async def _evaluate(self, lab: Lab, committed: Committed[Any], due: Due) -> None:
        run_id, ctx = self.info.run, self._ctx(lab, committed.round_no)
        then = partial(self.tools.results.evaluated, run_id, committed.round_no)
        await self.tools.judge.submit(run_id, lab, ctx, committed, final=due.final, then=then)

    async def _to_the_end(self, at: Standing, barrier: Barrier) -> bool:
        """Train and complete, or halt; False if more rounds were asked for in the meantime."""
        while at.committed.round_no < self.info.num_rounds and self.wanted():
            await self._round(at, barrier)
        await self.tools.judge.finish()
        if self.wanted():
            return await self._complete(at, barrier)
        await self._halt()
        return True

    async def _begin(self) -> Standing:
        """The lab, the seating and the last committed state, or the initial one.

        Raises:
            BadInput: the spec's data or processor cannot be had here.
        """
        tools, spec = self.tools, self.info.spec
        await tools.worker.run(processor_of, spec.device)  # a resumed run's cloud may be on another machine
        if not self.info.resolved:
            spec = await self._with_data(spec)
            n_edges, n_devices = len(tools.registry.live_edges()), tools.registry.n_devices()
            spec = spec.resolved(n_devices=n_devices, n_edges=n_edges)
        lab = await tools.worker.run(tools.labs.of, spec)
        found = await tools.archive.binding(self.info.run)
        table = Table(lab.members, tools.registry, found, spec.timeouts.reseat_after_s)
        kept = await tools.archive.committed(self.info.run, lab)
        return Standing(lab, table, *kept) if kept else await self._first(lab, table)

    async def _with_data(self, spec: ExperimentSpec) -> ExperimentSpec:
        """The spec without domains that cannot be had here; the run's notes say which, and why."""
        gone = await self.tools.worker.run(self.tools.labs.absent, spec)
        notes = tuple(f"without {name}: {why}"[:2000] for name, why in gone.items())
        async with self.lock:
            self.info = self.info.but(notes=notes)
        return without(spec, gone)

    async def _first(self, lab: Lab, table: Table) -> Standing:
        """Seat everybody, commit the initial state."""
        archive = self.tools.archive
        moves = table.seat_all(lab.spec.num_devices or 1)
        state = lab.algorithm.cloud.init(self._ctx(lab, 0), lab.initial)
        committed = Committed[Any](round_no=0, state=state, bases={}, edge_bases={}, retired={})
        written = await archive.write(committed, None)
        async with self.lock:
            info = self.info.but(spec=lab.spec, resolved=True)
            guard = await archive.commit(None, written, info, table.binding, None, moves_told(moves))
            self.info = info
        return Standing(lab, table, committed, guard)

    def _ctx(self, lab: Lab, round_no: int) -> Ctx:
        phase = lab.phase_of(max(round_no, 1)).name
        trainers = [seat for seat in lab.members.seats if seat.role == "train"]
        n_clients = len(lab.members.homes if lab.spec.client == "edge" else trainers)
        return lab.ctx(phase=phase, round_no=round_no, n_clients=n_clients)

    # ---- one round

    async def _round(self, at: Standing, barrier: Barrier) -> None:
        """Train and commit the next round; if it is stopped, nothing has happened."""
        tools, round_no = self.tools, at.committed.round_no + 1
        moves: list[Move] = []
        done = await self._attempts(at, barrier, round_no, "train", moves)
        if done is None:
            return
        after, detail = done
        written = await tools.archive.write(after, detail)
        events = moves_told(moves) + self._profiles_told(at, detail) + round_told(detail)
        async with self.lock:
            info = self._counted(detail)
            due = self._due(at.lab, round_no)
            at.guard = await tools.archive.commit(at.guard, written, info, at.table.binding, detail, events, due)
            at.committed, self.info = after, info
        await self._write_down(at, detail, due is not None)
        if due is not None:
            await self._evaluate(at.lab, after, due)
        if round_no % COLLECT_EVERY == 0:
            await tools.archive.collect()

    def _profiles_told(self, at: Standing, detail: RoundDetail) -> list[Happening]:
        """Seats whose agents have been given another profile since their last round, which the binding remembers."""
        if not at.lab.spec.devices.by_agent:
            return []
        before = at.table.binding.profiles
        seen = {row.seat: row.profile for row in detail.seats if row.profile is not None}
        at.table.binding = at.table.binding.but(profiles={**before, **seen})
        return profiles_told(detail.round_no, before, seen)

    def _due(self, lab: Lab, round_no: int) -> Due | None:
        last = round_no >= self.info.num_rounds
        return Due(final=last) if last or round_no % lab.spec.eval_every == 0 else None

    async def _attempts(
        self, at: Standing, barrier: Barrier, round_no: int, kind: Literal["train", "evaluate"], moves: list[Move]
    ) -> tuple[Committed[Any], RoundDetail] | None:
        """A round, begun anew on a new map where the quorum of edges was missed and the map has changed.

        Args:
            at: where the run stands.
            barrier: who must be there before each attempt.
            round_no: its number.
            kind: its kind.
            moves: seats that changed hands are added here.

        Raises:
            QuorumMissed: another attempt would not help, or there were too many.
        """
        for attempt in itertools.count(1):
            moves += await self._enough_devices(at, barrier)
            if not self.wanted():
                return None
            work = self._work(at, round_no, kind, attempt)
            if kind == "train":
                told = Happening("round.started", {"round_no": round_no, "attempt": attempt})
                await self.tools.archive.event(self.info.run, told)
            try:
                return await self._unless_stopped(work)
            except QuorumMissed as missed:
                if attempt >= MAX_ATTEMPTS or work.chart == chart(at.lab, at.table.binding, self.tools.registry):
                    raise
                why = {"round_no": round_no, "attempt": attempt, "reason": missed.detail[:2000]}
            await self.tools.archive.event(self.info.run, Happening("round.retried", why))
        raise AssertionError("unreachable")

    async def _enough_devices(self, at: Standing, barrier: Barrier) -> list[Move]:
        """Seats that changed hands, once enough devices are there."""
        moves: list[Move] = []
        waited = False
        async for missing in barrier.round(at.lab.spec, at.table, moves):
            await self._become("running", f"waiting: {missing}")
            waited = True
        if waited:
            await self._become("running")
        return moves

    def _work(self, at: Standing, round_no: int, kind: Literal["train", "evaluate"], attempt: int) -> CloudRound:
        tools, seated = self.tools, chart(at.lab, at.table.binding, self.tools.registry)
        return CloudRound(
            self.info.run,
            round_no,
            kind,
            at.lab,
            at.committed,
            at.table,
            seated,
            tools.edges,
            tools.worker,
            attempt=attempt,
            clock_s=self.info.simulated_s,
        )

    async def _unless_stopped(self, work: CloudRound) -> tuple[Committed[Any], RoundDetail] | None:
        """The round's result, None if it was stopped in the middle."""
        running = asyncio.create_task(work.run())
        try:
            while not running.done() and self.wish != "stop":
                self._heed.clear()
                heeding = asyncio.create_task(self._heed.wait())
                await asyncio.wait({running, heeding}, return_when=asyncio.FIRST_COMPLETED)
                heeding.cancel()
            return running.result() if running.done() else None
        finally:
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def _counted(self, detail: RoundDetail) -> RunInfo:
        info = self.info
        return info.but(
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

    async def _complete(self, at: Standing, barrier: Barrier) -> bool:
        """After the last round every seat evaluates; False if more rounds were asked for in the meantime."""
        done = await self._attempts(at, barrier, at.committed.round_no, "evaluate", [])
        if done is None:
            await self._halt()
            return True
        figures = await final_figures(self.tools, self.info.run, at, self._ctx(at.lab, at.committed.round_no), done[1])
        figures["wall_s"] = self._wall_s()
        info = self.info.but(status="completed", reason=None, **figures)
        await self.tools.results.round_done(RoundDone(info, at.lab, at.table, done[1]))
        await self.write_results(info)
        async with self.lock:
            if self.info.num_rounds > at.committed.round_no:
                return False
            await self._save("completed", **figures)
        return True

    async def _halt(self) -> None:
        scores = await self.tools.archive.evaluations(self.info.run)
        newest = scores.get(max(scores, default=0), {}).get("global")
        figures: dict[str, Any] = {"accuracy": newest.accuracy, "loss": newest.loss} if newest else {}
        async with self.lock:
            await self._save("paused" if self.wish == "pause" else "stopped", wall_s=self._wall_s(), **figures)
        await self.write_results(self.info)

    async def fail(self, reason: str) -> None:
        """The run ends here, for this reason; it can be resumed from its last committed round."""
        async with self.lock:
            await self._save("failed", reason[:2000], wall_s=self._wall_s())
        await self.write_results(self.info)

    async def write_results(self, info: RunInfo) -> None:
        """Bring the results folder up to date with what has been committed."""
        if self.at is None:
            if not info.rounds:
                await self.tools.results.begun(info)
            return
        lab, committed = self.at.lab, self.at.committed
        rounds = await self.tools.archive.rounds(info.run)
        models = lab.algorithm.cloud.models(self._ctx(lab, committed.round_no), committed.state)
        await self.tools.results.ended(info, lab, self.at.table, rounds, models.get("global"))
        for _ in range(2):  # what was written since the last look stays at the first
            await self.tools.archive.collect()

    async def _become(self, status: Status, reason: str | None = None) -> None:
        """Change the status while the run goes on; what somebody asked for meanwhile stays visible."""
        async with self.lock:
            if self.wanted():
                await self._save(status, reason)

    async def _save(self, status: Status, reason: str | None = None, **figures: Any) -> None:
        info = self.info.but(status=status, reason=reason, **figures)
        data = {"status": status, "reason": reason, "rounds": info.rounds, "at": now()}
        await self.tools.archive.save(info, Happening("run.status", data))
        self.info = info
