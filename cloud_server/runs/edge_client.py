"""The cloud's client to edges: one POST an edge (and home) and round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cloud_server.nodes.registry import Registry
from shared.core.errors import Lost, PlacementUnknown, Unreachable
from shared.core.records import canonical
from shared.federation.experiment import Experiment
from shared.federation.messages import EdgePlacement, RoundAnswer
from shared.federation.timeouts import longest_round_s
from shared.service.bodies import testing_s
from shared.service.client import Caller, while_alive
from shared.service.order_headers import FOR_HEADER, SOCKET_HEADER, check_reply_key
from shared.service.retry import STORE_S, retry
from shared.wire import codec

TELL_S = STORE_S + 10.0
MARGIN_S = STORE_S + 30.0
WAVES = 4
"""Waves an edge round may have before the cloud's wait, derived from the edge's, ends."""


@dataclass(frozen=True)
class EdgeReply:
    """An edge's answer and the bytes of the link between cloud and edge."""

    answer: RoundAnswer[Any]
    down_bytes: int
    up_bytes: int
    socket_bytes: int
    testing_s: float

    def folded_in(self) -> EdgeReply:
        """Without what has been added up: it is most of the answer's memory."""
        return replace(self, answer=self.answer.model_copy(update={"partial_sum": None, "update": None}))


@dataclass
class EdgeClient:
    """Reaches edges by name."""

    registry: Registry
    caller: Caller
    told: dict[tuple[str, str, int], tuple[str, dict[str, int]]] = field(default_factory=dict)

    async def round(
        self,
        edge: str,
        experiment: Experiment,
        body: codec.Body,
        seating: EdgePlacement,
        loads: Mapping[str, int],
        asked: str,
    ) -> EdgeReply:
        """One round of one home at an edge.

        Args:
            edge: its name.
            lab: of the run.
            body: the order.
            seating: who sits in the home.
            loads: seats by agent, of all homes: how long an agent may take.
            asked: the order's place, which the answer must name.

        Raises:
            StrataError: the edge was lost, did not answer in time, or answered with an error.
        """
        limit_s = self.limit_s(experiment, loads)
        request = self._round(edge, experiment, body, seating, loads, asked, limit_s)
        return await while_alive(request, lambda: self._check_alive(edge))

    async def _round(
        self,
        edge: str,
        experiment: Experiment,
        body: codec.Body,
        seating: EdgePlacement,
        loads: Mapping[str, int],
        asked: str,
        limit_s: float,
    ) -> EdgeReply:
        try:
            await self._tell(edge, seating, loads)
            return await self._post(edge, experiment, body, limit_s, asked)
        except PlacementUnknown:
            await self._tell(edge, seating, loads, again=True)
            return await self._post(edge, experiment, body, limit_s, asked)

    def _check_alive(self, edge: str) -> None:
        if not self.registry.edge_is_live(edge):
            raise Lost(f"edge {edge} was silent for more than {self.registry.ttl_s:g} s")

    def limit_s(self, experiment: Experiment, loads: Mapping[str, int]) -> float:
        """Derived from the edge's own limits: it waits for its fullest agent, wave after wave."""
        spec = experiment.spec
        fullest = max(loads.values(), default=1)
        return (
            spec.timeouts.visit_s * fullest * spec.inner_rounds * WAVES + MARGIN_S + longest_round_s(experiment, WAVES)
        )

    def _url(self, edge: str) -> str:
        if edge not in self.registry.edges:
            raise Lost(f"edge {edge} is not registered any more")
        return self.registry.edges[edge].url

    async def _tell(self, edge: str, seating: EdgePlacement, loads: Mapping[str, int], *, again: bool = False) -> None:
        """Send a seating that the edge has not been sent; it remembers the newest of each home."""
        place, told = (self._url(edge), seating.run_id, seating.edge), (canonical(seating), dict(loads))
        if self.told.get(place) == told and not again:
            return
        payload = {"placement": seating.model_dump(mode="json"), "loads": dict(loads)}
        who = f"edge {edge}"
        await retry(
            lambda left: self.caller.call_json(
                "PUT", f"{self._url(edge)}/placements", payload, limit_s=min(left, TELL_S), who=who
            ),
            limit_s=TELL_S,
            who=who,
            over=(Unreachable,),
        )
        self.told = {key: value for key, value in self.told.items() if key[1] == seating.run_id} | {place: told}

    async def _post(self, edge: str, experiment: Experiment, body: codec.Body, limit_s: float, asked: str) -> EdgeReply:
        reply = await self.caller.post_record(
            lambda: f"{self._url(edge)}/rounds",
            body,
            experiment.wire_types.round_answer,
            limit_s=limit_s,
            who=f"edge {edge}",
            headers={FOR_HEADER: edge},
            model=experiment.shapes,
        )
        check_reply_key(reply.headers, asked)
        below = reply.headers.get(SOCKET_HEADER, "")
        moved = reply.sent_bytes + reply.received_bytes + (int(below) if below.isdecimal() else 0)
        return EdgeReply(reply.record, reply.sent_bytes, reply.received_bytes, moved, testing_s(reply.headers))
