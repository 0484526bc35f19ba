"""The devices of this agent: their visits one after another, their held updates, their states."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shared import wire
from shared.algorithms import load_algorithm
from shared.errors import WireError
from shared.lab import Labs
from shared.messages import Contribution, Failure, Stage, UploadAnswer, UploadOrder
from shared.service import Worker
from shared.spec import ExperimentSpec, parse_spec
from shared.versions import FileVersions
from shared.visit import Collector, run_visits, upload_bytes


class Host:
    """Visits, states and held updates of the devices that this agent hosts.

    Args:
        state_dir: the agent's own folder; the seats' states survive restarts there.
        labs: what follows from a spec.
        worker: the one thread that computes.
    """

    def __init__(self, state_dir: Path, labs: Labs, worker: Worker) -> None:
        self.labs, self.worker = labs, worker
        self.states = FileVersions(state_dir / "seats")
        self.visiting: int | None = None
        self.waiting = 0
        self.n_visits = 0
        self._held: dict[tuple[str, int], tuple[Stage, dict[int, Contribution[Any]]]] = {}

    async def visits(self, body: bytearray, stop: threading.Event) -> wire.Body:
        """Run an order; the answer as bytes."""
        self.waiting += 1
        try:
            return await self.worker.run(self._visits, body, stop)
        finally:
            self.waiting -= 1

    def _visits(self, body: bytearray, stop: threading.Event) -> wire.Body:
        spec = spec_of(body)
        lab = self.labs.of(spec)
        order = wire.decode(lab.wire.visit_order, body, model=lab.initial)
        try:
            collector = run_visits(lab, order, self.states, stopped=stop.is_set, on_start=self._begin)
        finally:
            self.visiting = None
        if order.hold:
            self._held[order.stage.run_id, order.edge] = (order.stage, {c.seat: c for c in collector.singles})
        return wire.encode(collector.answer())

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
        gone = [
            Failure(seat=seat, edge=order.edge, reason="lost", detail="the agent no longer holds this update")
            for seat in order.seats
            if seat not in held
        ]
        return wire.encode(UploadAnswer(uploads=collector.uploads(), failures=tuple(gone)))

    def close(self) -> None:
        """Let the worker end."""
        self.worker.close()


def spec_of(body: bytearray) -> ExperimentSpec:
    """The spec that travels in an order, read before the order itself can be decoded.

    Raises:
        WireError: there is none.
        BadInput: it is malformed.
    """
    raw = wire.peek(body)
    if not isinstance(raw, Mapping) or not isinstance(raw.get("spec"), Mapping):
        raise WireError("the order holds no spec", field="spec")
    spec = parse_spec(raw["spec"])
    load_algorithm(spec.algorithm.name)
    return spec


def stage_of(body: bytearray) -> tuple[Stage, int]:
    """Stage and home edge of an order, read before it is decoded."""
    raw = wire.peek(body)
    stage, edge = (raw.get("stage"), raw.get("edge")) if isinstance(raw, Mapping) else (None, None)
    if not isinstance(stage, Mapping) or type(edge) is not int:
        raise WireError("the order names no stage", field="stage")
    try:
        return Stage.model_validate(dict(stage)), edge
    except ValueError as error:
        raise WireError(f"the order's stage: {error}", field="stage") from None
