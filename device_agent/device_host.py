"""The devices of an agent: runs their visits one after another, keeps their states and held updates."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device_agent.metrics import AgentMetrics
from shared.core.errors import WireError
from shared.federation.experiment import Experiment, ExperimentCache
from shared.federation.link_bytes import size_on_links
from shared.federation.messages import Contribution, Failure, UploadAnswer, UploadOrder, VisitOrder, WaveId
from shared.federation.order_keys import OrderKey, check_order
from shared.federation.real_time import PROFILE_HEADER, RealDuration, wait_until
from shared.federation.visits.uploads import UploadBuilder, upload_bytes
from shared.federation.visits.visit import run_visits, wave_fields
from shared.runtime.compute_thread import ComputeThread
from shared.runtime.logs import log_context, log_event
from shared.service.bodies import EncodedAnswer, Received
from shared.service.idempotency import KEEP_S
from shared.simulation import PROFILES
from shared.simulation.cost_model import LinkUse
from shared.storage.states import FileStateStore, Version
from shared.wire import codec


@dataclass(frozen=True)
class _Held:
    """Updates of a wave that wait for the edge's verdict; with `clock: real` also the duration of their visit."""

    wave_id: WaveId
    updates: dict[int, Contribution[Any]] = field(default_factory=dict)
    since: float = field(default_factory=time.monotonic)
    duration: RealDuration | None = None


class DeviceHost:
    """The devices that this agent hosts.

    Args:
        state_dir: the agent's own folder, in which the seats' states survive restarts.
        experiments: the experiments of recent specs.
        thread: the one thread that computes.
        metrics: counts visits.
        fsync: whether a seat's state is flushed to disk before its visit ends.

    Attributes:
        visiting: the seat whose visit runs now.
        waiting: orders that run or wait.
        n_visits: visits begun so far.
    """

    def __init__(
        self,
        state_dir: Path,
        experiments: ExperimentCache,
        thread: ComputeThread,
        metrics: AgentMetrics,
        *,
        fsync: bool = True,
    ) -> None:
        self.experiments, self.thread, self.metrics = experiments, thread, metrics
        self.states = FileStateStore(state_dir / "seats", fsync=fsync)
        self.visiting: int | None = None
        self.waiting = 0
        self.n_visits = 0
        self._held: dict[tuple[str, int, int | None], _Held] = {}

    async def visits(
        self,
        received: Received,
        key: OrderKey,
        stop: threading.Event,
        profile: str | None = None,
        keep_from: Version | None = None,
    ) -> EncodedAnswer:
        """Runs the visits of an order; with `clock: real` answers no earlier than the modelled device would.

        Args:
            received: the order.
            key: key of the order.
            stop: set when no caller waits for the answer any more.
            profile: name of the seats' profile, if the spec takes it from the agents.
            keep_from: the oldest version of a state that must be kept; None if it is where each visit begins.

        Raises:
            WireError: the order or the profile's name is malformed.
            Conflict: the population derived here differs from the edge's.
            Cancelled: no caller waits any more.
        """
        began = time.monotonic()
        self.waiting += 1
        try:
            answer, wall_s = await self.thread.run(self._run_and_encode, received, key, stop, profile, keep_from)
            await wait_until(began + wall_s, stop)  # outside the compute thread, which trains others meanwhile
            return answer
        finally:
            self.waiting -= 1

    def _run_and_encode(
        self, received: Received, key: OrderKey, stop: threading.Event, profile: str | None, keep_from: Version | None
    ) -> tuple[EncodedAnswer, float]:
        """The answer, and the wall seconds that the visit takes in the model (0 with simulated time)."""
        if profile is not None and profile not in PROFILES:
            raise WireError(f"no profile {profile[:64]!r}", field=PROFILE_HEADER)
        experiment, order, down_bytes = self._decode_order(received, key)
        try:
            uploads = run_visits(
                experiment,
                order,
                self.states,
                keep_from=keep_from,
                stopped=stop.is_set,
                on_start=self._on_visit_start,
                on_end=self.metrics.visited,
            )
        finally:
            self.visiting = None
        self.metrics.testing.inc(uploads.testing_s)
        self._held = {key: held for key, held in self._held.items() if _may_be_requested(key, held, order)}
        answer = codec.encode(uploads.answer())
        with log_context(**wave_fields(order.stage), home=order.edge):
            log_event("update.held" if order.hold else "update.sent", visits=len(order.visits), bytes=answer.n_bytes)
        duration = None
        if key.seat is not None:
            duration = _duration(experiment, order, uploads, down_bytes, answer.n_bytes, profile)
        if order.hold:
            updates = {item.seat: item for item in uploads.singles}
            self._held[key.run_id, key.edge, key.seat] = _Held(order.stage, updates, duration=duration)
        return EncodedAnswer(answer, uploads.testing_s), 0.0 if duration is None else duration.wall_s()

    def _decode_order(self, received: Received, key: OrderKey) -> tuple[Experiment, VisitOrder[Any], int]:
        """Decodes an order into torch's own memory, with its size on the link; the memory of its body is freed."""
        body, header = received.take()
        experiment = self.experiments.of(key.spec)
        order: VisitOrder[Any] = codec.decode(
            experiment.wire_types.visit_order,
            body,
            header=header,
            model=experiment.shapes,
            n_seats=len(experiment.population.seats),
            copied=True,
        )
        check_order(order, len(experiment.population.seats))
        return experiment, order, size_on_links(key.spec, body[: header.end], len(body))

    def _on_visit_start(self, seat: int) -> None:
        self.visiting = seat
        self.n_visits += 1
        self.metrics.begun.inc()

    async def uploads(self, received: Received, key: OrderKey, stop: threading.Event) -> EncodedAnswer:
        """Answers with the requested held updates and drops the others of their wave."""
        began = time.monotonic()
        body, header = received.take()
        order = codec.decode(UploadOrder, body, header=header)
        down_bytes = size_on_links(key.spec, body[: header.end], len(body))
        answer, wall_s = await self.thread.run(self._encode_uploads, order, key, down_bytes)
        await wait_until(began + wall_s, stop)
        return EncodedAnswer(answer)

    def _encode_uploads(self, order: UploadOrder, key: OrderKey, n_bytes: int) -> tuple[codec.Body, float]:
        experiment = self.experiments.of(key.spec)
        queue_key = (key.run_id, key.edge, key.seat)
        found = self._held.get(queue_key)
        if found is None or found.wave_id != order.stage:  # a late order must not take updates of a later wave
            found = _Held(order.stage)
        else:
            del self._held[queue_key]
        held = found.updates
        uploads = UploadBuilder(experiment)
        for seat in sorted(held.keys() & set(order.seats)):
            uploads.add(held[seat], upload_bytes(held[seat]))
        late = tuple(held[seat] for seat in order.late if seat in held)
        failures = [
            Failure(seat=seat, edge=order.edge, reason="lost", detail="the agent no longer holds this update")
            for seat in (*order.seats, *order.late)
            if seat not in held
        ]
        answer = codec.encode(UploadAnswer(uploads=uploads.uploads(), late=late, failures=tuple(failures)))
        with log_context(**wave_fields(order.stage), home=order.edge):
            log_event("update.sent", visits=len(order.seats) + len(late), bytes=answer.n_bytes)
        if found.duration is None:
            return answer, 0.0
        return answer, found.duration.upload_wall_s(LinkUse(down_bytes=n_bytes, up_bytes=answer.n_bytes))

    async def runs(self) -> list[str]:
        """The runs of which the states of seats are kept here."""
        return await self.thread.run(self.states.runs)

    async def forget(self, run_id: str) -> None:
        """Drops the states and held updates of a run."""
        await self.thread.run(self._drop_run, run_id)

    def _drop_run(self, run_id: str) -> None:
        self._held = {key: held for key, held in self._held.items() if key[0] != run_id}
        self.states.drop_run(run_id)

    def close(self) -> None:
        """Ends the compute thread."""
        self.thread.close()


def _may_be_requested(key: tuple[str, int, int | None], held: _Held, order: VisitOrder[Any]) -> bool:
    """Whether held updates may still be requested once this order has come.

    An edge's waves follow each other; with one order for each seat, the seats of a wave hold their updates at the same
    time. Those of a run that has ended are dropped after a while.
    """
    same = key[:2] == (order.stage.run_id, order.edge)
    return held.wave_id == order.stage if same else time.monotonic() - held.since < KEEP_S


def _duration(
    experiment: Experiment,
    order: VisitOrder[Any],
    uploads: UploadBuilder,
    down_bytes: int,
    up_bytes: int,
    profile: str | None,
) -> RealDuration:
    """How long the order's one visit takes in the model."""
    wave_id, (outcome,) = order.stage, uploads.outcomes
    ctx = experiment.ctx(phase=order.phase, round_no=wave_id.round_no, n_clients=order.n_clients, edge=order.edge)
    moved = experiment.moved_bytes(outcome.seat, order.visits[0].task)
    return RealDuration(
        experiment,
        ctx.at(edge_round=wave_id.edge_round, wave=wave_id.wave),
        experiment.seat(outcome.seat, profile),
        outcome.n_trained,
        0.0 if outcome.kind == "evaluate" else 1.0,
        LinkUse(down_bytes=down_bytes + moved, up_bytes=uploads.link_bytes.get(outcome.seat, up_bytes)),
    )
