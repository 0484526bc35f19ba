"""What the routes of an edge get: the edge behind the app."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from edge_server.membership import Membership
from edge_server.metrics import EdgeMetrics
from edge_server.roster import Roster
from edge_server.round_handler import Desk
from edge_server.settings import EdgeSettings
from shared.runtime.worker import Worker
from shared.service.bodies import Answered
from shared.service.idempotency import Once
from shared.storage.key_value import Store


def edge_of(request: Request) -> Edge:
    """The edge behind the app."""
    found: Edge = request.app.state.edge
    return found


@dataclass
class Edge:
    """What an edge owns while it runs."""

    settings: EdgeSettings
    store: Store
    roster: Roster
    membership: Membership
    desk: Desk
    once: Once[Answered]
    worker: Worker
    metrics: EdgeMetrics
