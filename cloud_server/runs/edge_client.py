"""The cloud's HTTP client to edges: one POST per edge and round."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cloud_server.nodes.registry import Registry
from shared.core.errors import Lost, PlacementUnknown, Unreachable
from shared.core.number_sets import EMPTY, NumberSet
from shared.core.records import canonical
from shared.federation.experiment import Experiment
from shared.federation.link_bytes import size_on_links
from shared.federation.messages import RoundAnswer
from shared.federation.placements import EdgePlacement
from shared.federation.real_time import longest_round_s
from shared.federation.scheduling import n_syncs
from shared.federation.update_weights import n_buffered
from shared.identity.assignments import Assigner
from shared.identity.names import edge_identity
from shared.service.bodies import socket_bytes, testing_s
from shared.service.client import Caller, while_alive
from shared.service.order_headers import FOR_HEADER, check_reply_key
from shared.service.retry import STORE_S, retry
from shared.wire import codec

PLACEMENT_S = STORE_S + 10.0
"""Longest wait until an edge has taken a placement."""
MARGIN_S = STORE_S + 30.0
"""Added to the time that a round may take at an edge."""
WAVES = 4
"""Waves of an edge round for which the cloud waits."""


@dataclass(frozen=True)
class EdgeReply:
    """An edge's answer and the bytes of the link between cloud and edge."""

    answer: RoundAnswer[Any]
    down_bytes: int
    up_bytes: int
    socket_bytes: int
    testing_s: float

    def without_update(self) -> EdgeReply:
        """The reply without its update or partial sum, which take most of its memory."""
        return replace(self, answer=self.answer.model_copy(update={"partial_sum": None, "update": None}))


@dataclass
class EdgeClient:
    """Reaches edges by name.

    Attributes:
        assigner: signs which seats an edge may order; None where nodes show no certificates.
        sent: by address, run and edge number, the placement and loads that the edge was sent last.
        assigned: as `sent`, the seats that were assigned to the edge and to no other since.
    """

    registry: Registry
    caller: Caller
    assigner: Assigner | None = None
    sent: dict[tuple[str, str, int], tuple[str, dict[str, int]]] = field(default_factory=dict)
    assigned: dict[tuple[str, str, int], NumberSet] = field(default_factory=dict)

    async def run_round(
        self,
        edge_name: str,
        experiment: Experiment,
        body: codec.Body,
        placement: EdgePlacement,
        loads: Mapping[str, int],
        order_key: str,
    ) -> EdgeReply:
        """One round at an edge.

        Args:
            edge_name: the process that serves the edge.
            experiment: of the run.
            body: the order.
            placement: the seats that visit the edge, and their agents.
            loads: seats by agent, over all edges; bounds how long an agent may take.
            order_key: key of the order, which the answer must name.

        Raises:
            StrataError: the edge was lost, did not answer in time, or answered with an error.
        """
        limit_s = self.limit_s(experiment, placement, loads)
        request = self._send_and_wait(edge_name, experiment, body, placement, loads, order_key, limit_s)
        return await while_alive(request, lambda: self._check_alive(edge_name))

    async def _send_and_wait(
        self,
        edge_name: str,
        experiment: Experiment,
        body: codec.Body,
        placement: EdgePlacement,
        loads: Mapping[str, int],
        order_key: str,
        limit_s: float,
    ) -> EdgeReply:
        try:
            await self._send_placement(edge_name, placement, loads)
            return await self._post_order(edge_name, experiment, body, limit_s, order_key)
        except PlacementUnknown:
            await self._send_placement(edge_name, placement, loads, again=True)
            return await self._post_order(edge_name, experiment, body, limit_s, order_key)

    def _check_alive(self, edge_name: str) -> None:
        if edge_name in self.registry.edges and (why := self.registry.edge_reason(edge_name)):
            raise Lost(f"edge {edge_name} takes part in no run: {why}")
        if not self.registry.edge_is_live(edge_name):
            raise Lost(f"edge {edge_name} was silent for more than {self.registry.ttl_s:g} s")

    def limit_s(self, experiment: Experiment, placement: EdgePlacement, loads: Mapping[str, int]) -> float:
        """Longest wait for an edge, in wall seconds: the edge waits for its fullest agent, wave after wave.

        With asynchronous devices a version takes as many waves as it has updates of one device.
        """
        spec, sync, n_seats = experiment.spec, experiment.spec.sync.devices, max(len(placement.seats), 1)
        edge_rounds = spec.edge_rounds_at(placement.edge) * n_syncs(
            spec, experiment.population.seats.among(placement.seats)
        )
        visits = math.ceil(n_buffered(sync, n_seats) / n_seats) if sync.asynchronous else 1
        computing_s = spec.timeouts.visit_s * max(loads.values(), default=1) * edge_rounds * visits * WAVES
        return computing_s + MARGIN_S + longest_round_s(experiment, edge_rounds, WAVES)

    def _url(self, edge_name: str) -> str:
        if edge_name not in self.registry.edges:
            raise Lost(f"edge {edge_name} is not registered any more")
        return self.registry.edges[edge_name].own_url

    async def _send_placement(
        self, edge_name: str, placement: EdgePlacement, loads: Mapping[str, int], *, again: bool = False
    ) -> None:
        """Send a placement unless it is the last one that was sent: an edge process keeps the newest of each edge.

        An agent believes the newest assignment of a seat, so a seat that comes back to an edge needs another one.
        """
        key = self._url(edge_name), placement.run_id, placement.edge
        content = canonical(placement), dict(loads)
        came = self.assigner is not None and len(placement.seats - self.assigned.get(key, EMPTY)) > 0
        if self.sent.get(key) == content and not again and not came:
            return
        payload = {"placement": placement.model_dump(mode="json"), "loads": dict(loads)}
        if self.assigner is not None:
            payload["assignments"] = self._assignments(self.assigner, edge_name, placement)
            own = self.assigned.get(key, EMPTY) | placement.seats
            of_run = {at: seats - placement.seats for at, seats in self.assigned.items() if at[1] == placement.run_id}
            self.assigned |= {**of_run, key: own}
        peer = edge_identity(edge_name)
        await retry(
            lambda left_s: self.caller.call_json(
                "PUT", f"{self._url(edge_name)}/placements", payload, limit_s=min(left_s, PLACEMENT_S), peer=peer
            ),
            limit_s=PLACEMENT_S,
            peer=str(peer),
            over=(Unreachable,),
        )
        self.sent[key] = content

    def end_run(self, run_id: str) -> None:
        """Forget what edges were sent for a run, and let agents refuse its assignments."""
        self.sent = {key: value for key, value in self.sent.items() if key[1] != run_id}
        self.assigned = {key: seats for key, seats in self.assigned.items() if key[1] != run_id}
        if self.assigner is not None:
            self.assigner.end_run(run_id)

    def _assignments(self, assigner: Assigner, edge_name: str, placement: EdgePlacement) -> dict[str, str]:
        return {
            host.agent: assigner.assign(placement.run_id, placement.edge, edge_name, host.agent, host.seats)
            for host in placement.hosts
        }

    async def _post_order(
        self, edge_name: str, experiment: Experiment, body: codec.Body, limit_s: float, order_key: str
    ) -> EdgeReply:
        reply = await self.caller.post_record(
            lambda: f"{self._url(edge_name)}/rounds",
            body,
            experiment.wire_types.round_answer,
            limit_s=limit_s,
            peer=edge_identity(edge_name),
            headers={FOR_HEADER: edge_name},
            model=experiment.shapes,
        )
        check_reply_key(reply.headers, order_key)
        moved = reply.sent_bytes + reply.received_bytes + socket_bytes(reply.headers)
        down_bytes = size_on_links(experiment.spec, body.parts[0], reply.sent_bytes)
        return EdgeReply(reply.record, down_bytes, reply.received_bytes, moved, testing_s(reply.headers))
