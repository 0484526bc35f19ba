"""The cloud's client to edges: one POST an edge (and home) and round."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from cloud_server.registry import Registry
from cloud_server.seating import Table
from shared import wire
from shared.errors import SeatingUnknown, StrataError
from shared.lab import Lab
from shared.messages import RoundAnswer, Seating
from shared.spec import canonical
from shared.transport import SOCKET_HEADER, Caller

POLL_S = 0.5
MARGIN_S = 30.0
WAVES = 4
"""Waves an edge round may have before the cloud's wait, derived from the edge's, ends."""


@dataclass(frozen=True)
class EdgeReply:
    """An edge's answer and the bytes of the link between cloud and edge."""

    answer: RoundAnswer[Any]
    down_bytes: int
    up_bytes: int
    socket_bytes: int


@dataclass
class Edges:
    """Reaches edges by name."""

    registry: Registry
    caller: Caller
    told: set[tuple[str, str]] = field(default_factory=set)

    async def round(self, edge: str, lab: Lab, body: wire.Body, seating: Seating, table: Table) -> EdgeReply:
        """One round of one home at an edge.

        Raises:
            StrataError: the edge was lost, did not answer in time, or answered with an error.
        """
        limit_s = self.limit_s(lab, table)
        try:
            await self._tell(edge, seating, table)
            return await self._post(edge, lab, body, limit_s)
        except SeatingUnknown:
            self.told.discard(self._told_key(edge, seating))
            await self._tell(edge, seating, table)
            return await self._post(edge, lab, body, limit_s)

    def limit_s(self, lab: Lab, table: Table) -> float:
        """Derived from the edge's own limits: it waits for its fullest agent, wave after wave."""
        spec = lab.spec
        fullest = max(table.loads().values(), default=1)
        return spec.timeouts.visit_s * fullest * spec.edge_rounds * WAVES + MARGIN_S

    def _told_key(self, edge: str, seating: Seating) -> tuple[str, str]:
        return self.registry.edges[edge].url, wire.digest_of(canonical(seating).encode())

    async def _tell(self, edge: str, seating: Seating, table: Table) -> None:
        key = self._told_key(edge, seating)
        if key in self.told:
            return
        payload = {"seating": seating.model_dump(mode="json"), "loads": table.loads()}
        await self.caller.call_json("PUT", f"{key[0]}/seatings", payload, limit_s=10, who=f"edge {edge}")
        self.told.add(key)

    async def _post(self, edge: str, lab: Lab, body: wire.Body, limit_s: float) -> EdgeReply:
        asking = asyncio.create_task(
            self.caller.post_record(
                f"{self.registry.edges[edge].url}/rounds",
                body,
                lab.wire.round_answer,
                limit_s=limit_s,
                who=f"edge {edge}",
                model=lab.initial,
            )
        )
        try:
            while not asking.done():
                await asyncio.wait({asking}, timeout=POLL_S)
                if not asking.done() and not self.registry.edge_is_live(edge):
                    lost = StrataError(f"edge {edge} was silent for more than {self.registry.ttl_s:g} s")
                    lost.code = "lost"
                    raise lost
            reply = asking.result()
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
        below = int(reply.headers.get(SOCKET_HEADER, "0"))
        moved = reply.sent_bytes + reply.received_bytes + below
        return EdgeReply(reply.record, reply.sent_bytes, reply.received_bytes, moved)

    async def forget(self, run_id: str) -> None:
        """Tell every live edge to drop a run; one that is away keeps its files until it is told again."""
        for edge in self.registry.live_edges():
            url = f"{self.registry.edges[edge].url}/runs/{run_id}"
            await asyncio.gather(
                self.caller.call_json("DELETE", url, limit_s=5, who=f"edge {edge}"), return_exceptions=True
            )
