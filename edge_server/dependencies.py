"""The objects of an edge, as its routes receive them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from edge_server.membership import Membership
from edge_server.metrics import EdgeMetrics
from edge_server.roster import Roster
from edge_server.round_handler import RoundHandler
from edge_server.settings import EdgeSettings
from shared.runtime.compute_thread import ComputeThread
from shared.service.bodies import EncodedAnswer
from shared.service.idempotency import IdempotentRunner
from shared.service.needs import Needs
from shared.storage.key_value import Store


@dataclass
class Edge:
    """The objects that live as long as the process."""

    settings: EdgeSettings
    store: Store
    roster: Roster
    membership: Membership
    handler: RoundHandler
    orders: IdempotentRunner[EncodedAnswer]
    thread: ComputeThread
    metrics: EdgeMetrics
    needs: Needs


async def edge_of(request: Request) -> Edge:
    """The edge behind the app; asynchronous, so that no thread is needed for it."""
    found: Edge = request.app.state.edge
    return found


TheEdge = Annotated[Edge, Depends(edge_of)]
