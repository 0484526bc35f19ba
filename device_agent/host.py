"""The devices of this agent: their visits one after another, their held updates, their states."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from shared import wire
from shared.errors import WireError
from shared.lab import Lab, Labs
from shared.messages import Contribution, Failure, Stage, UploadAnswer, UploadOrder, VisitOrder
from shared.records import own
from shared.service import Worker
from shared.spec import ExperimentSpec, parse_spec
from shared.transport import Received
from shared.versions import FileVersions
from shared.visit import Collector, run_visits, upload_bytes


class Host:
    """Visits, states and held updates of the devices that this agent hosts.

    Args:
        state_dir: the agent's own folder; the seats' states survive restarts there.
        labs: what follows from a spec.
        worker: the one thread that computes.
        fsync: whether a seat's state is on the disk, not only with the kernel, when its visit ends.
    """

    def __init__(self, state_dir: Path, labs: Labs, worker: Worker, *, fsync: bool = True) -> None:
        self.labs, self.worker = labs, worker
        self.states = FileVersions(state_dir / "seats", fsync=fsync)
        self.visiting: int | None = None
        self.waiting = 0
        self.n_visits = 0
        self._held: dict[tuple[str, int], tuple[Stage, dict[int, Contribution[Any]]]] = {}

    async def visits(self, received: Received, stop: threading.Event) -> wire.Body:
        """Run an order; the answer as bytes."""
        self.waiting += 1
        try:
            return await self.worker.run(self._visits, received, stop)
        finally:
            self.waiting -= 1

    def _visits(self, received: Received, stop: threading.Event) -> wire.Body:
        lab, order = self._order(received)
        run_id = order.stage.run_id
        self._held = {key: held for key, held in self._held.items() if key[0] == run_id}  # one run trains at a time
        try:
            collector = run_visits(lab, order, self.states, stopped=stop.is_set, on_start=self._begin)
        finally:
            self.visiting = None
        if order.hold:
            self._held[run_id, order.edge] = (order.stage, {c.seat: c for c in collector.singles})
        return wire.encode(collector.answer())

    def _order(self, received: Received) -> tuple[Lab, VisitOrder[Any]]:
        """The order in torch's own memory; that of the body is free from here on."""
        body = received.take()
        lab = self.labs.of(spec_of(body))
        order: VisitOrder[Any] = own(wire.decode(lab.wire.visit_order, body, model=lab.shapes))
        check_order(order, len(lab.members.seats))
        return lab, order

    def _begin(self, seat: int) -> None:
        self.visiting = seat
        self.n_visits += 1

    async def uploads(self, order: UploadOrder) -> wire.Body:
        """The held updates that are asked for; the others of that wave are dropped."""
        return await self.worker.run(self._uploads, order)

    def _uploads(self, order: UploadOrder) -> wire.Body:
        lab = self.labs.of(order.spec)
        stage, held = self._held.pop((order.stage.run_id, order.edge), (order.stage, {}))
        if stage != order.stage:
            held = {}
        collector = Collector(lab)
        for seat in sorted(held.keys() & set(order.seats)):
            collector.add(held[seat], upload_bytes(held[seat]))
        late = tuple(held[seat] for seat in order.late if seat in held)
        gone = [
            Failure(seat=seat, edge=order.edge, reason="lost", detail="the agent no longer holds this update")
            for seat in (*order.seats, *order.late)
            if seat not in held
        ]
        return wire.encode(UploadAnswer(uploads=collector.uploads(), late=late, failures=tuple(gone)))

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


def check_order(order: VisitOrder[Any], n_seats: int) -> None:
    """See that an order names seats of the run, each once, and messages that it brings.

    Raises:
        WireError: it does not.
    """
    seats = [visit.seat for visit in order.visits]
    if len(set(seats)) != len(seats) or not all(0 <= seat < n_seats for seat in seats):
        raise WireError(f"seats {seats[:50]}: each once, of a run of {n_seats}", field="visits")
    if not all(0 <= visit.message < len(order.messages) for visit in order.visits):
        raise WireError(f"a visit names a message beyond the {len(order.messages)} there are", field="visits")


def spec_of(body: bytearray) -> ExperimentSpec:
    """The spec that travels in an order, read before the order itself can be decoded.

    Raises:
        WireError: there is none.
        BadInput: it is malformed.
    """
    raw = wire.peek(body)
    if not isinstance(raw, Mapping) or not isinstance(raw.get("spec"), Mapping):
        raise WireError("the order holds no spec", field="spec")
    return parse_spec(raw["spec"])


def stage_of(body: bytearray) -> tuple[Stage, int]:
    """Stage and home edge of an order, read before it is decoded."""
    raw = wire.peek(body)
    stage, edge = (raw.get("stage"), raw.get("edge")) if isinstance(raw, Mapping) else (None, None)
    if not isinstance(stage, Mapping) or type(edge) is not int:
        raise WireError("the order names no stage", field="stage")
    try:
        return Stage.model_validate(dict(stage)), edge
    except ValidationError as error:
        raise wire.misfit(Stage, error) from None
