"""Digital twins and visits in flight as the cloud shows them; the edges keep them."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import TypeVar

from pydantic import ValidationError

from cloud_server.nodes.registry import Registry
from shared.core.errors import NotFound, StrataError, WireError
from shared.core.records import Record
from shared.identity.names import edge_identity
from shared.service.api.nodes import VisitsInFlight
from shared.simulation.digital_twin import TwinList

R = TypeVar("R", bound=Record)
ASK_S = 10.0
"""Longest wait for an edge, in wall seconds."""


async def twins_at(registry: Registry, edge: str, run_id: str) -> TwinList:
    """The twins that one edge keeps of a run.

    Raises:
        NotFound: there is no such edge, or it keeps no twins of that run.
        StrataError: the edge does not answer.
    """
    return await _asked(registry, edge, f"runs/{run_id}/twins", TwinList)


async def visits_at(registry: Registry, edge: str, run_id: str) -> VisitsInFlight:
    """The visits in flight at one edge in a run.

    Raises:
        NotFound: there is no such edge.
        StrataError: the edge does not answer.
    """
    return await _asked(registry, edge, f"runs/{run_id}/visits", VisitsInFlight)


async def _asked(registry: Registry, edge: str, path: str, kind: type[R]) -> R:
    if edge not in registry.edges:
        raise NotFound(f"no edge {edge}")
    url, peer = f"{registry.edges[edge].own_url}/{path}", edge_identity(edge)
    raw = await registry.caller.call_json("GET", url, limit_s=ASK_S, peer=peer)
    try:
        return kind.model_validate(raw)
    except ValidationError as error:
        raise WireError(f"{peer} answered with no {kind.__name__}: {error.error_count()} errors") from None


async def twins_of(registry: Registry, run_id: str, agent: str, seats: Container[int]) -> TwinList:
    """The twins of the seats that an agent has in a run; if several edges keep one of a seat, the newest.

    Raises:
        NotFound: no live edge keeps a twin of these seats.
    """
    edges = registry.live_edges()
    answers = await asyncio.gather(*(twins_at(registry, edge, run_id) for edge in edges), return_exceptions=True)
    for found in answers:
        if isinstance(found, BaseException) and not isinstance(found, StrataError):
            raise found
    twins = [twin for found in answers if isinstance(found, TwinList) for twin in found.twins if twin.seat in seats]
    newest = {twin.seat: twin for twin in sorted(twins, key=lambda twin: twin.telemetry.at_s)}
    if not newest:
        raise NotFound(f"no edge keeps a twin of agent {agent} in run {run_id}")
    return TwinList(twins=tuple(newest[seat] for seat in sorted(newest)))
