"""One run, from its last committed round until it is complete or told to pause or stop."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from cloud_server.runs.events import RunEvent, now, placement_events, profile_events, round_events
from cloud_server.runs.final_scores import final_figures
from cloud_server.runs.placement import PlacementChange, PlacementManager
from cloud_server.runs.readiness import Barrier
from cloud_server.runs.repository import Checkpoint, PendingEvaluation
from cloud_server.runs.results_writer import RoundDone
from cloud_server.runs.round import CloudRound, QuorumMissed
from cloud_server.runs.round_map import round_map
from cloud_server.runs.state import CloudServices, RunState
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.run_records.rounds import RoundDetail, RoundInfo
from shared.run_records.runs import RunInfo, Status
from shared.runtime.logs import log_context
from shared.training.compute_device import compute_device_of

MAX_ATTEMPTS = 10
"""At one round, before the run fails with the reason of the last."""
COLLECT_EVERY = 10
"""Rounds between two looks for files that nothing refers to."""
RequestedState = Literal["run", "pause", "stop"]


@dataclass
class RunExecutor:
    """The training of one run.

    Attributes:
        info: the run's document; changed together with the store, under the lock.
        lock: held while a document changes.
        wish: what somebody asked for; looked at between rounds, `stop` also within.
    """

    services: CloudServices
    info: RunInfo
    lock: asyncio.Lock
    requested: RequestedState = "run"
    state: RunState | None = None
    began: float = field(default_factory=time.monotonic)
    wall_before_s: float = 0.0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def request(self, wish: RequestedState) -> None:
        """Ask for another course of things."""
        self.requested = wish
        self._changed.set()

    def wanted(self) -> bool:
        """Whether nobody asked for a pause or an end."""
        return self.requested == "run"

    # ---- the run

    async def run(self) -> None:
        """Train until complete, paused or stopped; the document says which."""
        with log_context(run=self.info.run):
            await self._run()

    async def _run(self) -> None:
        self.wall_before_s = self.info.wall_s
        await self._become("starting")
        barrier = Barrier(self.services.registry, self.services.settle_s, self.wanted)
        async for missing in barrier.start(self.info.spec, resumed=self.info.resolved):
            await self._become("starting", f"waiting: {missing}")
        if not self.wanted():
            return await self._halt()
        at = self.state = await self._begin()
        self.began = time.monotonic()
        await self._become("running")
        await self._catch_up(at)
        while not await self._to_the_end(at, barrier):
            pass
        return None

    async def _catch_up(self, at: RunState) -> None:
        """Write down and evaluate what an earlier cloud process committed and did not come to."""
        run_id, archive = self.info.run, self.services.repository
        written = max(await self.services.results.last(run_id), 1)  # perhaps in part
        dues = {round_no: (state, due) for round_no, state, due in await archive.due(run_id, at.experiment)}
        for row in await archive.rounds(run_id):  # an evaluation may have come after its round was written
            if row.round_no < written:
                await self._write_down(at, row, row.round_no in dues)
        async for detail in archive.details(run_id, range(written, at.checkpoint.round_no + 1)):
            await self._write_down(at, detail, detail.round_no in dues)
        for state, due in dues.values():
            await self._evaluate(at.experiment, state, due)

    async def _write_down(self, at: RunState, row: RoundInfo, due: bool) -> None:
        await self.services.results.round_done(RoundDone(self.info, at.experiment, at.placement, row, due))

    async def _evaluate(self, experiment: Experiment, committed: Checkpoint[Any], due: PendingEvaluation) -> None:
        run_id, ctx = self.info.run, self._ctx(experiment, committed.round_no)
        then = partial(self.services.results.evaluated, run_id, committed.round_no)
        await self.services.evaluator.submit(run_id, experiment, ctx, committed, final=due.final, then=then)

    async def _to_the_end(self, at: RunState, barrier: Barrier) -> bool:
        """Train and complete, or halt; False if more rounds were asked for in the meantime."""
        while at.checkpoint.round_no < self.info.num_rounds and self.wanted():
            await self._round(at, barrier)
        await self.services.evaluator.finish()
        if self.wanted():
            return await self._complete(at, barrier)
        await self._halt()
        return True

    async def _begin(self) -> RunState:
        """The lab, the seating and the last committed state, or the initial one.

        Raises:
            BadInput: the spec's data or processor cannot be had here.
        """
        tools, spec = self.services, self.info.spec
        await tools.worker.run(compute_device_of, spec.device)  # a resumed run's cloud may be on another machine
        if not self.info.resolved:
            n_edges, n_devices = len(tools.registry.live_edges()), tools.registry.n_devices()
            spec = spec.resolved(n_devices=n_devices, n_edges=n_edges)
        experiment = await tools.worker.run(tools.experiments.of, spec)
        found = await tools.repository.binding(self.info.run)
        table = PlacementManager(experiment.population, tools.registry, found, spec.timeouts.reseat_after_s)
        kept = await tools.repository.committed(self.info.run, experiment)
        return RunState(experiment, table, *kept) if kept else await self._first(experiment, table)

    async def _first(self, experiment: Experiment, table: PlacementManager) -> RunState:
        """Seat everybody, commit the initial state."""
        archive = self.services.repository
        moves = table.seat_all(experiment.spec.num_devices or 1)
        state = experiment.algorithm.cloud.init(self._ctx(experiment, 0), experiment.initial)
        committed = Checkpoint[Any](round_no=0, state=state, bases={}, edge_bases={}, retired={})
        written = await archive.write(committed, None)
        async with self.lock:
            info = self.info.replace(spec=experiment.spec, resolved=True)
            guard = await archive.commit(None, written, info, table.placement, None, placement_events(moves))
            self.info = info
        return RunState(experiment, table, committed, guard)

    def _ctx(self, experiment: Experiment, round_no: int) -> Context:
        phase = experiment.phase_of(max(round_no, 1)).name
        trainers = [seat for seat in experiment.population.seats if seat.role == "train"]
        n_clients = len(experiment.population.edges if experiment.spec.client == "edge" else trainers)
        return experiment.ctx(phase=phase, round_no=round_no, n_clients=n_clients)

    # ---- one round

    async def _round(self, at: RunState, barrier: Barrier) -> None:
        """Train and commit the next round; if it is stopped, nothing has happened."""
        tools, round_no = self.services, at.checkpoint.round_no + 1
        moves: list[PlacementChange] = []
        done = await self._attempts(at, barrier, round_no, "train", moves)
        if done is None:
            return
        after, detail = done
        written = await tools.repository.write(after, detail)
        events = placement_events(moves) + self._profiles_told(at, detail) + round_events(detail)
        async with self.lock:
            info = self._counted(detail)
            due = self._due(at.experiment, round_no)
            at.expected_digest = await tools.repository.commit(
                at.expected_digest, written, info, at.placement.placement, detail, events, due
            )
            at.checkpoint, self.info = after, info
        await self._write_down(at, detail, due is not None)
        if due is not None:
            await self._evaluate(at.experiment, after, due)
        if round_no % COLLECT_EVERY == 0:
            await tools.repository.collect()

    def _profiles_told(self, at: RunState, detail: RoundDetail) -> list[RunEvent]:
        """Seats whose agents have been given another profile since their last round, which the binding remembers."""
        if not at.experiment.spec.devices.by_agent:
            return []
        before = at.placement.placement.profiles
        seen = {row.seat: row.profile for row in detail.seats if row.profile is not None}
        at.placement.placement = at.placement.placement.replace(profiles={**before, **seen})
        return profile_events(detail.round_no, before, seen)

    def _due(self, experiment: Experiment, round_no: int) -> PendingEvaluation | None:
        last = round_no >= self.info.num_rounds
        return PendingEvaluation(final=last) if last or round_no % experiment.spec.eval_every == 0 else None

    async def _attempts(
        self,
        at: RunState,
        barrier: Barrier,
        round_no: int,
        kind: Literal["train", "evaluate"],
        moves: list[PlacementChange],
    ) -> tuple[Checkpoint[Any], RoundDetail] | None:
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
                told = RunEvent("round.started", {"round_no": round_no, "attempt": attempt})
                await self.services.repository.event(self.info.run, told)
            try:
                return await self._unless_stopped(work)
            except QuorumMissed as missed:
                if attempt >= MAX_ATTEMPTS or work.round_map == round_map(
                    at.experiment, at.placement.placement, self.services.registry
                ):
                    raise
                why = {"round_no": round_no, "attempt": attempt, "reason": missed.detail[:2000]}
            await self.services.repository.event(self.info.run, RunEvent("round.retried", why))
        raise AssertionError("unreachable")

    async def _enough_devices(self, at: RunState, barrier: Barrier) -> list[PlacementChange]:
        """Seats that changed hands, once enough devices are there."""
        moves: list[PlacementChange] = []
        waited = False
        async for missing in barrier.round(at.experiment.spec, at.placement, moves):
            await self._become("running", f"waiting: {missing}")
            waited = True
        if waited:
            await self._become("running")
        return moves

    def _work(self, at: RunState, round_no: int, kind: Literal["train", "evaluate"], attempt: int) -> CloudRound:
        tools, seated = self.services, round_map(at.experiment, at.placement.placement, self.services.registry)
        return CloudRound(
            self.info.run,
            round_no,
            kind,
            at.experiment,
            at.checkpoint,
            at.placement,
            seated,
            tools.edges,
            tools.worker,
            attempt=attempt,
            clock_s=self.info.simulated_s,
        )

    async def _unless_stopped(self, work: CloudRound) -> tuple[Checkpoint[Any], RoundDetail] | None:
        """The round's result, None if it was stopped in the middle."""
        running = asyncio.create_task(work.run())
        try:
            while not running.done() and self.requested != "stop":
                self._changed.clear()
                heeding = asyncio.create_task(self._changed.wait())
                await asyncio.wait({running, heeding}, return_when=asyncio.FIRST_COMPLETED)
                heeding.cancel()
            return running.result() if running.done() else None
        finally:
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def _counted(self, detail: RoundDetail) -> RunInfo:
        info = self.info
        return info.replace(
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

    async def _complete(self, at: RunState, barrier: Barrier) -> bool:
        """After the last round every seat evaluates; False if more rounds were asked for in the meantime."""
        done = await self._attempts(at, barrier, at.checkpoint.round_no, "evaluate", [])
        if done is None:
            await self._halt()
            return True
        figures = await final_figures(
            self.services, self.info.run, at, self._ctx(at.experiment, at.checkpoint.round_no), done[1]
        )
        figures["wall_s"] = self._wall_s()
        info = self.info.replace(status="completed", reason=None, **figures)
        await self.services.results.round_done(RoundDone(info, at.experiment, at.placement, done[1]))
        await self.write_results(info)
        async with self.lock:
            if self.info.num_rounds > at.checkpoint.round_no:
                return False
            await self._save("completed", **figures)
        return True

    async def _halt(self) -> None:
        scores = await self.services.repository.evaluations(self.info.run)
        newest = scores.get(max(scores, default=0), {}).get("global")
        figures: dict[str, Any] = {"accuracy": newest.accuracy, "loss": newest.loss} if newest else {}
        async with self.lock:
            await self._save("paused" if self.requested == "pause" else "stopped", wall_s=self._wall_s(), **figures)
        await self.write_results(self.info)

    async def fail(self, reason: str) -> None:
        """The run ends here, for this reason; it can be resumed from its last committed round."""
        async with self.lock:
            await self._save("failed", reason[:2000], wall_s=self._wall_s())
        await self.write_results(self.info)

    async def write_results(self, info: RunInfo) -> None:
        """Bring the results folder up to date with what has been committed."""
        if self.state is None:
            if not info.rounds:
                await self.services.results.begun(info)
            return
        experiment, committed = self.state.experiment, self.state.checkpoint
        rounds = await self.services.repository.rounds(info.run)
        models = experiment.algorithm.cloud.models(self._ctx(experiment, committed.round_no), committed.state)
        await self.services.results.ended(info, experiment, self.state.placement, rounds, models.get("global"))
        for _ in range(2):  # what was written since the last look stays at the first
            await self.services.repository.collect()

    async def _become(self, status: Status, reason: str | None = None) -> None:
        """Change the status while the run goes on; what somebody asked for meanwhile stays visible."""
        async with self.lock:
            if self.wanted():
                await self._save(status, reason)

    async def _save(self, status: Status, reason: str | None = None, **figures: Any) -> None:
        info = self.info.replace(status=status, reason=reason, **figures)
        data = {"status": status, "reason": reason, "rounds": info.rounds, "at": now()}
        await self.services.repository.save(info, RunEvent("run.status", data))
        self.info = info
