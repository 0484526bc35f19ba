"""The training of one run: from its last checkpoint until it is complete, paused, stopped or failed."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.runs.agents_of_run import resolved, whole_plan, with_idle_agents
from cloud_server.runs.best import best_in, better
from cloud_server.runs.body_checks import check_bodies
from cloud_server.runs.checkpoint import Checkpoint, CheckpointFiles, PendingEvaluation
from cloud_server.runs.ends import NO_UPDATE, reached, with_lateness
from cloud_server.runs.evaluation import evaluation_due
from cloud_server.runs.events import RunEvent, note_events, now, placement_events, round_events
from cloud_server.runs.final_scores import final_scores, with_means
from cloud_server.runs.placement import PlacementChange, PlacementManager
from cloud_server.runs.plugin_checks import check_nodes, with_plugins
from cloud_server.runs.provenance import provenance_of, reconciled, reopened
from cloud_server.runs.quorum import QuorumMissed
from cloud_server.runs.readiness import Barrier
from cloud_server.runs.room import make_room
from cloud_server.runs.round import RoundResult
from cloud_server.runs.round_attempts import Attempt, new_round
from cloud_server.runs.round_map import round_map
from cloud_server.runs.run_results import RunResults
from cloud_server.runs.run_state import CloudServices, RunState
from cloud_server.runs.starts import first_checkpoint
from cloud_server.runs.wholeness import check_whole
from shared.federation.context import Context
from shared.federation.experiment import Experiment
from shared.federation.trial import try_run
from shared.run_records.rounds import Evaluation, RunScores
from shared.run_records.runs import RunInfo, Status
from shared.runtime.logs import log_context_of
from shared.training.compute_device import compute_device_of

MAX_ATTEMPTS = 10
"""Attempts at one round; then the run fails with the reason of the last."""
DELETE_FILES_EVERY = 10
"""Rounds between two deletions of files to which nothing refers."""
RequestedState = Literal["run", "pause", "stop"]
RoundKind = Literal["train", "evaluate"]


@dataclass
class RunExecutor:
    """Executes one run.

    Attributes:
        services: of the cloud.
        info: the run's document; changed together with the store, under the lock.
        lock: held while a document changes.
        report_nodes: adds events of nodes that were lost or came back since it was last awaited: when the run begins to
            train, every now and then, and before the run ends.
        requested: what a user has requested: `pause` takes effect between rounds, `stop` at once.
        state, placement: None until the run has its data and its seats; the placement is there first.
        began: when this process began to train the run (monotonic).
        wall_before_s: wall seconds that the run had taken before.
        finished: set once nothing is done for the run any more; its status is final a little earlier.
    """

    services: CloudServices
    info: RunInfo
    lock: asyncio.Lock
    report_nodes: Callable[[], Awaitable[None]]
    requested: RequestedState = "run"
    state: RunState | None = None
    placement: PlacementManager | None = None
    began: float = field(default_factory=time.monotonic)
    wall_before_s: float = 0.0
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self._newest = {name: getattr(self.info, name) for name in (*RunScores.__annotations__, "best")}
        self._barrier = Barrier(self.services.registry, self._agents, self.services.settle_s, self.may_continue)

    def request(self, state: RequestedState) -> None:
        """Request that the run pauses or stops."""
        self.requested = state
        self._changed.set()

    def may_continue(self) -> bool:
        """Whether neither a pause nor a stop has been requested."""
        return self.requested == "run"

    def _agents(self) -> list[AgentEntry]:
        return with_plugins(self.services.shares.of(self.info.run), self.info.spec)

    @property
    def _results(self) -> RunResults:
        return RunResults(self.services, self.services.results.of(self.info.run))

    # ---- the run

    @log_context_of(lambda self: {"run": self.info.run})
    async def run(self) -> None:
        """Train until complete, paused or stopped; the document says which."""
        self.wall_before_s = self.info.wall_s
        await self._set_status("starting")
        started_before = self.info.resolved  # its spec names the numbers of edges and devices with which it started
        self.services.shares.keep(self.info.run, (await self.services.repository.placement(self.info.run)).agents)
        async for missing in self._barrier.start(self.info.spec, resumed=started_before):
            await self._set_status("starting", f"waiting for {missing}")
        if not self.may_continue():
            await self._halt()
            return
        check_nodes(self.services.registry, self.info.spec)
        state = self.state = await self._load_or_create_state()
        ctx = self._ctx(state.experiment, state.checkpoint.round_no + 1)
        await self.services.thread.run(check_bodies, self.services.registry, state, ctx)
        self.began = time.monotonic()
        await self.report_nodes()
        await self._set_status("running")
        try:
            await self._finish_outstanding_work(state)
            while not await self._train_to_end(state):
                pass
        finally:
            await state.flights.keep_only(())

    async def _load_or_create_state(self) -> RunState:
        """The state of the run at its last checkpoint, or at the initial one, which is committed here.

        Raises:
            BadInput: the spec's data or compute device is not available here.
            ProvenanceChanged: the run began with other data, code or packages.
            StateUnreadable: its checkpoint is missing or damaged.
        """
        services, spec = self.services, self.info.spec
        await services.thread.run(compute_device_of, spec.device)  # a resumed run's cloud may be on another machine
        if not self.info.resolved:
            spec = resolved(spec, self._agents(), len(services.registry.open_edges()))
        experiment = await services.thread.run(reopened, services.experiments, self.info.replace(spec=spec))
        if self.info.resolved:
            experiment = await self._reconcile(experiment)  # before the checkpoint, which other data may not fit
        kept = await services.repository.placement(self.info.run)
        population, wait_s = experiment.population, spec.timeouts.reseat_after_s
        placement = self.placement = PlacementManager(population, services.registry, kept, wait_s, self._agents)
        found = await services.repository.checkpoint(self.info.run, experiment)
        await self._check_whole(has_state=found is not None)
        return RunState(experiment, placement, *found) if found else await self._create_state(experiment, placement)

    async def _check_whole(self, *, has_state: bool) -> None:
        rounds = {row.round_no for row in await self.services.repository.rounds(self.info.run)}
        check_whole(self.info, has_state=has_state, rounds=rounds)

    async def _reconcile(self, experiment: Experiment) -> Experiment:
        """The experiment of a resumed run as its document now has it, whose changes since it began are recorded.

        Raises:
            ProvenanceChanged: the run began with other data, code or packages.
        """
        present = await self.services.thread.run(provenance_of, experiment)
        async with self.lock:
            if self.info.spec.max_devices == experiment.spec.max_devices:
                self.info, events = reconciled(self.info, present, accept=False)
                if events:
                    await self.services.repository.save(self.info, *events)
                return experiment
        return await self._reconcile(await self.services.thread.run(reopened, self.services.experiments, self.info))

    async def _create_state(self, experiment: Experiment, placement: PlacementManager) -> RunState:
        """Try code of the user, place the seats and commit the initial state."""
        await self.services.thread.run(try_run, experiment)
        changes = placement.seat_all(experiment.spec.num_devices or 1)
        checkpoint, init_sha256, taken = await first_checkpoint(self.services, experiment, self._ctx(experiment, 0))
        files = CheckpointFiles(await self.services.repository.write_state(self.info.run, checkpoint), None)
        provenance = await self.services.thread.run(provenance_of, experiment)
        plan = await self.services.thread.run(whole_plan, experiment, self.info.spec, placement)
        async with self.lock:
            info = self.info.replace(spec=experiment.spec, resolved=True, metrics=experiment.scoring.infos)
            info = info.replace(provenance=provenance, changes=(), plan=(*plan.lines, *taken), init_sha256=init_sha256)
            info = info.replace(classes=experiment.data.reading.classes)
            commit = self.services.repository.commit
            digest = await commit(None, files, info, placement.placement, None, placement_events(changes))
            self.info = info
        return RunState(experiment, placement, checkpoint, digest)

    async def _finish_outstanding_work(self, state: RunState) -> None:
        """Write results and run evaluations that an earlier cloud process committed but did not get to."""
        found = await self.services.repository.pending_evaluations(self.info.run, state.experiment)
        await self._results.catch_up(self.info, state, {round_no for round_no, _, _ in found})
        for _, checkpoint, due in found:
            await self._evaluate(state.experiment, checkpoint, due)

    async def _train_to_end(self, state: RunState) -> bool:
        """Train and complete, or halt; False if more rounds were requested in the meantime."""
        while state.checkpoint.round_no < self.info.num_rounds and self.may_continue():
            if not await self._end_early(state):
                await self._train_round(state)
        await state.flights.keep_only(())  # the checkpoint keeps what is in flight, for rounds that are added later
        await self.services.evaluator.finish(self.info.run)
        if self.may_continue():
            return await self._complete(state)
        await self._halt()
        return True

    async def _end_early(self, state: RunState) -> bool:
        """Whether the run's `stop` holds; then its last round is the present one, which is evaluated as such."""
        before = self.info
        if before.stop is None:
            return False
        if before.stop.by_metric:
            await self.services.evaluator.finish(before.run)
        ended_by = await reached(self.services.repository, before, state.experiment)
        if ended_by is None:
            return False
        await self._evaluate(state.experiment, state.checkpoint, PendingEvaluation(final=True))
        await self.services.evaluator.finish(before.run)
        async with self.lock:
            if self.info.stop == before.stop:
                await self._save(self.info.replace(num_rounds=before.rounds, stop=None, ended_by=ended_by))
        return True

    def _ctx(self, experiment: Experiment, round_no: int) -> Context:
        phase = experiment.phase_of(max(round_no, 1)).name
        population = experiment.population
        n_clients = len(population.edges) if experiment.spec.client == "edge" else population.n_training
        return experiment.ctx(phase=phase, round_no=round_no, n_clients=n_clients)

    async def _train_round(self, state: RunState) -> None:
        """Train and commit the next round. If the run is stopped meanwhile, the round leaves no trace."""
        await make_room(self.services, self.info, state)
        round_no = state.checkpoint.round_no + 1
        changes: list[PlacementChange] = []
        result = await self._attempt_until_quorum(state, round_no, "train", changes)
        if result is None:
            return
        due = await self._commit(state, result, changes)
        await self._results.round_done(self.info, state, result.detail, due=due is not None)
        if due is not None:
            await self._evaluate(state.experiment, result.checkpoint, due)
        if round_no % DELETE_FILES_EVERY == 0:
            await self.services.repository.delete_unreferenced_files()

    async def _commit(
        self, state: RunState, result: RoundResult, changes: list[PlacementChange]
    ) -> PendingEvaluation | None:
        """Commit a round, whose state has been written; the evaluation that its checkpoint needs, if any."""
        repository, detail = self.services.repository, result.detail
        files = await repository.write_visits(self.info.run, result.file, detail)
        events = placement_events(changes) + state.keep_profiles(detail) + round_events(detail)
        async with self.lock:
            info = with_lateness(self.info.with_round(detail, self._wall_s()).replace(**self._newest), detail)
            info = with_idle_agents(info, state.placement)
            events += note_events(self.info, info)
            due = evaluation_due(self.info, info)
            state.expected_digest = await repository.commit(
                state.expected_digest, files, info, state.placement.placement, detail, events, due
            )
            state.checkpoint, self.info = result.checkpoint, info
        return due

    async def _evaluate(self, experiment: Experiment, checkpoint: Checkpoint[Any], due: PendingEvaluation) -> None:
        run_id, ctx = self.info.run, self._ctx(experiment, checkpoint.round_no)
        then = partial(self._evaluated, experiment, checkpoint.round_no)
        await self.services.evaluator.submit(run_id, experiment, ctx, checkpoint, final=due.final, then=then)

    def _evaluated(self, experiment: Experiment, round_no: int, scores: dict[str, Evaluation] | None) -> None:
        """Keep the scores of a round, which the run's document has from its next change on, and report them."""
        if scores and "global" in scores and experiment.algorithm.headline == "global model":
            best = better(self._newest["best"], best_in(scores, round_no, experiment))
            self._newest = {**scores["global"].of_run, "best": best}
        self._results.folder.evaluated(self.info.run, round_no, scores)

    async def _attempt_until_quorum(
        self, state: RunState, round_no: int, kind: RoundKind, changes: list[PlacementChange]
    ) -> RoundResult | None:
        """Attempts at a round; after a missed quorum the next one follows if the round map has changed.

        Args:
            state: of the run.
            round_no: the round.
            kind: its kind.
            changes: changes of the placement are added here.

        Returns:
            The result; None if a pause or a stop was requested before it was there.

        Raises:
            QuorumMissed: another attempt would not help, or there were too many.
        """
        for attempt in itertools.count(1):
            changes += await self._wait_for_devices(state)
            if not self.may_continue():
                return None
            attempted = new_round(self.services, self.info, state, kind, attempt, partial(self._keep, state))
            if kind == "train":
                started = RunEvent("round.started", {"round_no": round_no, "attempt": attempt})
                await self.services.repository.add_event(self.info.run, started)
            try:
                return await self._run_unless_stopped(attempted)
            except QuorumMissed as missed:
                unchanged = attempted.round_map == round_map(self.info.run, state.experiment, state.placement)
                if attempt >= MAX_ATTEMPTS or unchanged:
                    raise
                data = {"round_no": round_no, "attempt": attempt, "reason": missed.detail[:2000]}
            await self.services.repository.add_event(self.info.run, RunEvent("round.retried", data))
        raise AssertionError("unreachable")

    async def _wait_for_devices(self, state: RunState) -> list[PlacementChange]:
        """Wait until enough devices and edges are alive; the changes of the placement until then."""
        changes, waited = list[PlacementChange](), False
        async for missing in self._barrier.round(state.experiment.spec, state.placement, changes):
            await self._set_status("running", f"waiting for {missing}")
            waited = True
        if waited:
            await self._set_status("running")
        return changes

    async def _keep(self, state: RunState, checkpoint: Checkpoint[Any]) -> None:
        """Commit a checkpoint within a round."""
        repository = self.services.repository
        files = CheckpointFiles(await repository.write_state(self.info.run, checkpoint), None)
        async with self.lock:
            state.expected_digest = await repository.commit(
                state.expected_digest, files, self.info, state.placement.placement, None, ()
            )
            state.checkpoint = checkpoint

    async def _run_unless_stopped(self, attempted: Attempt) -> RoundResult | None:
        """The round's result, None if a stop was requested while it ran."""
        running = asyncio.create_task(attempted.run())
        try:
            while not running.done() and self.requested != "stop":
                self._changed.clear()
                changed = asyncio.create_task(self._changed.wait())
                await asyncio.wait({running, changed}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            return running.result() if running.done() else None
        finally:
            if not running.done():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)

    def _wall_s(self) -> float:
        return self.wall_before_s + time.monotonic() - self.began

    # ---- the end

    async def _complete(self, state: RunState) -> bool:
        """Let every seat evaluate and complete the run; False if more rounds were requested in the meantime."""
        result = await self._attempt_until_quorum(state, state.checkpoint.round_no, "evaluate", [])
        if result is None:
            await self._halt()
            return True
        await self._check_whole(has_state=True)
        ctx = self._ctx(state.experiment, state.checkpoint.round_no)
        detail = with_means(result.detail, state.experiment)
        scores = await final_scores(self.services, self.info.run, state, ctx, detail)
        reason = self.info.ended_by or (None if self.info.n_used else NO_UPDATE)
        ended = {"status": "completed", "reason": reason, "wall_s": self._wall_s(), **scores}
        await self._results.round_done(self.info, state, detail)
        await self._results.write(self.info.replace(**ended), state)
        await self.report_nodes()
        async with self.lock:
            if self.info.num_rounds > state.checkpoint.round_no:
                return False
            await self._save(self.info.replace(**ended))
        return True

    async def _halt(self) -> None:
        await self.end("paused" if self.requested == "pause" else "stopped", None)

    async def end(self, status: Literal["failed", "paused", "stopped"], reason: str | None) -> None:
        """End or pause the run with this reason, if any; it can be resumed from its last checkpoint.

        Its results are written first, so that a status is stored once they are there; those of a failed run as far as
        they can be.

        Raises:
            ResultsIncomplete: the results of a run that did not fail cannot be written.
        """
        await self.report_nodes()
        ended = {"status": status, "reason": reason and reason[:2000], "wall_s": self._wall_s()}
        info = self.info.replace(**ended, **self._newest)
        if status == "failed":
            ended["reason"] = (await self._results.write_failure(info, self.state)).reason
        else:
            await self._results.write(info, self.state)
        async with self.lock:
            await self._save(self.info.replace(**ended, **self._newest))

    async def _set_status(self, status: Status, reason: str | None = None) -> None:
        """Change the status of the run while it goes on, unless a user's request already changed it."""
        async with self.lock:
            if self.may_continue():
                await self._save(self.info.replace(status=status, reason=reason))

    async def _save(self, info: RunInfo) -> None:
        data = {"status": info.status, "reason": info.reason, "rounds": info.rounds, "at": now()}
        await self.services.repository.save(info, RunEvent("run.status", data))
        self.info = info
