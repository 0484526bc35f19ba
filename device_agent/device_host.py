"""The devices of this agent: their visits one after another, their held updates, their states."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_agent.metrics import AgentMetrics
from shared.core.errors import WireError
from shared.core.records import copy_tensors
from shared.federation.experiment import Experiment, ExperimentCache
from shared.federation.messages import Contribution, Failure, Outcome, UploadAnswer, UploadOrder, VisitOrder, WaveId
from shared.federation.order_keys import check_order, seat_key, spec_of
from shared.federation.timeouts import PROFILE_HEADER, RealDuration, wait_until
from shared.federation.visits.uploads import UploadBuilder, upload_bytes
from shared.federation.visits.visit import ids_of, run_visits
from shared.runtime.logs import log_context, log_event
from shared.runtime.worker import Worker
from shared.service.bodies import EncodedAnswer, Received
from shared.simulation import PROFILES
from shared.simulation.cost_model import LinkUse
from shared.storage.states import FileStateStore
from shared.wire import codec


@dataclass(frozen=True)
class _Held:
    """The updates of a wave that wait for the edge's verdict; with `clock: real` how their visit was paced."""

    stage: WaveId
    updates: dict[int, Contribution[Any]] = field(default_factory=dict)
    paced: RealDuration | None = None


class DeviceHost:
    """Visits, states and held updates of the devices that this agent hosts.

    Args:
        state_dir: the agent's own folder; the seats' states survive restarts there.
        labs: what follows from a spec.
        worker: the one thread that computes.
        metrics: told of visits.
        fsync: whether a seat's state is on the disk, not only with the kernel, when its visit ends.
    """

    def __init__(
        self,
        state_dir: Path,
        experiments: ExperimentCache,
        worker: Worker,
        metrics: AgentMetrics,
        *,
        fsync: bool = True,
    ) -> None:
        self.experiments, self.worker, self.metrics = experiments, worker, metrics
        self.states = FileStateStore(state_dir / "seats", fsync=fsync)
        self.visiting: int | None = None
        self.waiting = 0
        self.n_visits = 0
        self._began = 0.0
        self._held: dict[tuple[str, int, int | None], _Held] = {}

    async def visits(self, received: Received, stop: threading.Event, profile: str | None = None) -> EncodedAnswer:
        """Run an order; the answer as bytes, with `clock: real` not before the modelled device would have it.

        Args:
            received: the order.
            stop: set when nobody waits any more.
            profile: that the seats have by this agent, where the spec asks for it.
        """
        began = time.monotonic()
        self.waiting += 1
        try:
            made, wall_s = await self.worker.run(self._visits, received, stop, profile)
            await wait_until(began + wall_s, stop)  # beside the waits of others, which this thread may train
            return made
        finally:
            self.waiting -= 1

    def _visits(self, received: Received, stop: threading.Event, profile: str | None) -> tuple[EncodedAnswer, float]:
        """The answer, and the wall seconds that the visit takes by its model."""
        if profile is not None and profile not in PROFILES:
            raise WireError(f"no profile {profile[:64]!r}", field=PROFILE_HEADER)
        experiment, order, n_bytes = self._order(received)
        run_id, lane = order.stage.run_id, seat_key(experiment.spec, [visit.seat for visit in order.visits])
        try:
            collector = run_visits(
                experiment, order, self.states, stopped=stop.is_set, on_start=self._begin, on_end=self._end
            )
        finally:
            self.visiting = None
        self.metrics.testing.inc(collector.testing_s)
        self._held = {key: held for key, held in self._held.items() if _may_come(key, held, order)}
        answer = codec.encode(collector.answer())
        with log_context(**ids_of(order.stage), home=order.edge):
            log_event("update.held" if order.hold else "update.sent", visits=len(order.visits), bytes=answer.n_bytes)
        paced = None if lane is None else _paced(experiment, order, collector, n_bytes, answer.n_bytes, profile)
        if order.hold:
            updates = {item.seat: item for item in collector.singles}
            self._held[run_id, order.edge, lane] = _Held(order.stage, updates, paced)
        return EncodedAnswer(answer, collector.testing_s), 0.0 if paced is None else paced.wall_s()

    def _order(self, received: Received) -> tuple[Experiment, VisitOrder[Any], int]:
        """The order in torch's own memory, and its size; the body's memory is free from here on."""
        body = received.take()
        experiment = self.experiments.of(spec_of(body))
        order: VisitOrder[Any] = copy_tensors(
            codec.decode(
                experiment.wire_types.visit_order,
                body,
                model=experiment.shapes,
                n_seats=len(experiment.population.seats),
            )
        )
        check_order(order, len(experiment.population.seats))
        return experiment, order, len(body)

    def _begin(self, seat: int) -> None:
        self.visiting, self._began = seat, time.monotonic()
        self.n_visits += 1
        self.metrics.begun.inc()

    def _end(self, outcome: Outcome[Any]) -> None:
        self.metrics.visited(outcome, time.monotonic() - self._began)

    async def uploads(self, order: UploadOrder, n_bytes: int, stop: threading.Event) -> EncodedAnswer:
        """The held updates that are asked for by an order of `n_bytes`; those held beside them are dropped."""
        began = time.monotonic()
        answer, wall_s = await self.worker.run(self._uploads, order, n_bytes)
        await wait_until(began + wall_s, stop)
        return EncodedAnswer(answer)

    def _uploads(self, order: UploadOrder, n_bytes: int) -> tuple[codec.Body, float]:
        experiment = self.experiments.of(order.spec)
        key = (order.stage.run_id, order.edge, seat_key(order.spec, [*order.seats, *order.late]))
        found = self._held.get(key)
        if found is None or found.stage != order.stage:  # an order that comes late asks for nothing of a later wave
            found = _Held(order.stage)
        else:
            del self._held[key]
        held = found.updates
        collector = UploadBuilder(experiment)
        for seat in sorted(held.keys() & set(order.seats)):
            collector.add(held[seat], upload_bytes(held[seat]))
        late = tuple(held[seat] for seat in order.late if seat in held)
        gone = [
            Failure(seat=seat, edge=order.edge, reason="lost", detail="the agent no longer holds this update")
            for seat in (*order.seats, *order.late)
            if seat not in held
        ]
        answer = codec.encode(UploadAnswer(uploads=collector.uploads(), late=late, failures=tuple(gone)))
        with log_context(**ids_of(order.stage), home=order.edge):
            log_event("update.sent", visits=len(order.seats) + len(late), bytes=answer.n_bytes)
        if found.paced is None:
            return answer, 0.0
        return answer, found.paced.upload_wall_s(LinkUse(down_bytes=n_bytes, up_bytes=answer.n_bytes))

    async def runs(self) -> list[str]:
        """The runs of which something is kept here."""
        return await self.worker.run(self.states.runs)

    async def forget(self, run_id: str) -> None:
        """Drop states and held updates of a run."""
        await self.worker.run(self._forget, run_id)

    def _forget(self, run_id: str) -> None:
        self._held = {key: held for key, held in self._held.items() if key[0] != run_id}
        self.states.drop_run(run_id)

    def close(self) -> None:
        """Let the worker end."""
        self.worker.close()


def _may_come(key: tuple[str, int, int | None], held: _Held, order: VisitOrder[Any]) -> bool:
    """Whether held updates may still be asked for: one run trains at a time, and a home's waves follow each other.

    With one order for each seat, those of a wave hold beside each other.
    """
    return key[0] == order.stage.run_id and (key[1] != order.edge or held.stage == order.stage)


def _paced(
    experiment: Experiment,
    order: VisitOrder[Any],
    collector: UploadBuilder,
    down_bytes: int,
    up_bytes: int,
    profile: str | None,
) -> RealDuration:
    """How long the order's one visit takes by its model."""
    stage, (outcome,) = order.stage, collector.outcomes
    ctx = experiment.ctx(phase=order.phase, round_no=stage.round_no, n_clients=order.n_clients, edge=order.edge)
    moved = experiment.moved_bytes(outcome.seat, order.visits[0].task)
    return RealDuration(
        experiment,
        ctx.at(edge_round=stage.edge_round, wave=stage.wave),
        experiment.seat(outcome.seat, profile),
        outcome.n_trained,
        0.0 if outcome.kind == "evaluate" else 1.0,
        LinkUse(down_bytes=down_bytes + moved, up_bytes=collector.link_bytes.get(outcome.seat, up_bytes)),
    )
