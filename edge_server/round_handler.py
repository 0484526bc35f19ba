"""What an edge does with an order of the cloud: load placement and state, run the round, save, answer."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from edge_server.metrics import EdgeMetrics
from edge_server.roster import Roster
from edge_server.rounds.agent_client import AgentClient
from edge_server.rounds.asynchronous_round import AsynchronousRound
from edge_server.rounds.collected_samples import CollectedSamples
from edge_server.rounds.edge_checkpoint import EdgeMemory
from edge_server.rounds.round import EdgeRound
from edge_server.rounds.twins import Twins
from edge_server.state_store import EdgeStateStore
from edge_server.visits_between_rounds import VisitsBetweenRounds
from shared.core.errors import Conflict, NotReady
from shared.core.user_code import user_code
from shared.federation.experiment import Experiment, ExperimentCache
from shared.federation.link_bytes import size_on_links
from shared.federation.messages import RoundOrder
from shared.federation.placements import EdgePlacement
from shared.runtime.compute_thread import ComputeThread
from shared.runtime.cpu_use import CpuMeter, CpuUse
from shared.runtime.logs import log_context_of, log_event
from shared.service.bodies import EncodedAnswer, Received
from shared.service.client import Caller
from shared.service.order_headers import EDGE_NAME_HEADER, EDGE_URL_HEADER
from shared.spec.experiment import ExperimentSpec
from shared.wire import codec

ADDRESS_S = 10.0
"""Wall seconds that an order waits for an edge that is not yet registered with the cloud."""


@dataclass
class RoundHandler:
    """Runs the rounds that the cloud orders.

    Attributes:
        edge_name: this process; in a run it may serve several edges by number.
        states: what is kept between rounds.
        experiments: of the runs, by their specs.
        thread: the thread that computes.
        caller: the HTTP client to agents.
        roster: when each agent was last heard.
        ttl_s: an agent that is silent for longer is lost.
        metrics: of this process.
        own_url: the address to which agents send heartbeats; empty until the cloud has reported it.
        cpu: measures the CPUs of this process' container, in which the workers of its edges train.
        flights: visits in flight between two rounds, with asynchronous devices.
    """

    edge_name: str
    states: EdgeStateStore
    experiments: ExperimentCache
    thread: ComputeThread
    caller: Caller
    roster: Roster
    ttl_s: float
    metrics: EdgeMetrics
    own_url: str = ""
    cpu: CpuMeter = field(default_factory=CpuMeter)
    flights: VisitsBetweenRounds = field(default_factory=VisitsBetweenRounds)

    async def handle(self, received: Received, spec: ExperimentSpec, stop: threading.Event) -> EncodedAnswer:
        """Runs one round and returns its encoded `RoundAnswer`.

        Args:
            received: the body of a `RoundOrder`.
            spec: of the run, as the order has it.
            stop: set when the caller has disconnected.

        Raises:
            PlacementUnknown: this edge does not hold the placement that the order names.
            Conflict: the population derived here differs from the cloud's.
            NotReady: this edge could not register with the cloud, or the quorum was missed.
        """
        with self.metrics.one_round():
            experiment, order, n_bytes = await self.thread.run(self._decode_order, received, spec)
            return await self._run_round(experiment, order, n_bytes, stop)

    def _decode_order(self, received: Received, spec: ExperimentSpec) -> tuple[Experiment, RoundOrder[Any], int]:
        """The order with tensors copied into torch's memory, and its size on the link; frees the memory of the body."""
        body, header = received.take()
        experiment = self.experiments.of(spec)
        order: RoundOrder[Any] = codec.decode(
            experiment.wire_types.round_order,
            body,
            header=header,
            model=experiment.shapes,
            n_seats=len(experiment.population.seats),
            copied=True,
        )
        return experiment, order, size_on_links(spec, body[: header.end], len(body))

    def _cpu_of(self, placement: EdgePlacement, seat: int) -> CpuUse | None:
        """What is known of the CPUs of the process that works for a seat; this one works for seats without an agent."""
        return self.roster.cpu_of(placement.host(seat).agent) if seat in placement.seats else self.cpu.look()

    @log_context_of(lambda self, _, order, *__: {"run": order.run_id, "round": order.round_no, "home": order.edge})
    async def _run_round(
        self, experiment: Experiment, order: RoundOrder[Any], n_bytes: int, stop: threading.Event
    ) -> EncodedAnswer:
        log_event("order.taken", kind=order.kind, bytes=n_bytes)
        if experiment.population.digest != order.population:
            raise Conflict(
                "the population digest differs from the cloud's; do both use the same data set and package versions?"
            )
        await self._wait_until_registered()
        kept, memory, known = await asyncio.gather(
            self.states.placement(order), self.states.memory(experiment, order), self.states.twins_before(order)
        )
        kept.placement.check_seats(len(experiment.population.seats))
        twins = Twins(known, experiment.spec.telemetry, order.clock_s)
        if experiment.spec.clock == "real" and experiment.spec.keeps_twins:
            twins.cpu_of = partial(self._cpu_of, kept.placement)
        agents = AgentClient(
            experiment,
            order,
            kept,
            self.caller,
            self.roster,
            self.thread,
            stop,
            self.states.seat_states,
            {EDGE_NAME_HEADER: self.edge_name, EDGE_URL_HEADER: self.own_url},
            self.ttl_s,
        )
        work = self._new_round(experiment, order, agents, memory, twins, n_bytes)
        try:
            with user_code(f"the round of edge {order.edge}") if experiment.has_plugins else nullcontext():
                answer = await work.run()
        except BaseException:
            work.abandon()
            raise
        self.metrics.noted(work.log)
        encoded = self.thread.run(codec.encode, answer)
        if order.kind == "train":
            memory.state, memory.residual = work.state, work.residual
            if isinstance(work, AsynchronousRound):
                memory.stored_visits = self.flights.keep(experiment, order, work.flights)
            _, body = await asyncio.gather(self.states.commit(experiment, order, memory, twins), encoded)
        else:
            body = await encoded
        log_event("update.sent", n_updates=answer.n_updates, bytes=body.n_bytes, simulated_s=answer.simulated_s)
        return EncodedAnswer(body, work.log.testing_s, work.log.socket_bytes, again=work.log.below_quorum)

    def _new_round(
        self,
        experiment: Experiment,
        order: RoundOrder[Any],
        agents: AgentClient,
        memory: EdgeMemory,
        twins: Twins,
        n_bytes: int,
    ) -> EdgeRound:
        fresh = memory.state is None and order.base is not None
        known = (
            experiment,
            order,
            agents,
            self.thread,
            memory.state,
            memory.late,
            twins,
            n_bytes,
            fresh,
            CollectedSamples(memory.uploads),
            memory.residual,
        )
        if order.kind == "evaluate" or not experiment.spec.sync.devices.asynchronous:
            return EdgeRound(*known)
        flights, stored_visits = self.flights.take(order, memory)
        return AsynchronousRound(*known, flights=flights, stored_visits=stored_visits)

    async def _wait_until_registered(self) -> None:
        """Waits until the cloud has reported this edge's address: orders to agents carry it.

        Raises:
            NotReady: the cloud has not reported it within `ADDRESS_S` seconds.
        """
        ends = time.monotonic() + ADDRESS_S
        while not self.own_url:
            if time.monotonic() > ends:
                raise NotReady(
                    f"edge {self.edge_name} has not been able to register with the cloud for {ADDRESS_S:g} s"
                )
            await asyncio.sleep(0.05)
