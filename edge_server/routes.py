"""The endpoints of an edge. Only tiers may call them."""

from __future__ import annotations

from functools import partial

from fastapi import APIRouter, Request
from starlette.responses import Response

from edge_server.dependencies import TheEdge
from edge_server.rounds.placements import KeptPlacement
from shared.federation.order_keys import read_order_key
from shared.service.api.health import Health
from shared.service.api.identities import RevokedBody
from shared.service.api.membership import AgentHeartbeat, AgentHeartbeatAnswer, NonceAnswer
from shared.service.api.nodes import VisitsInFlight
from shared.service.app import health
from shared.service.auth import guarded
from shared.service.bodies import BodyResponse, receive
from shared.service.metrics import metrics_router
from shared.service.openapi import RunId, content, problems, record_body
from shared.service.order_headers import (
    MEDIA_TYPE,
    ORDER_KEY_HEADER,
    SOCKET_HEADER,
    TESTING_HEADER,
    check_recipient,
    order_key,
)
from shared.service.peers import check_speaker
from shared.service.reverse.routes import reverse_routes
from shared.simulation.digital_twin import TwinList
from shared.storage.key_value.store import unavailable

_open = APIRouter()
_cloud = APIRouter(dependencies=[guarded("cloud")], responses=problems(409))
_device = APIRouter(dependencies=[guarded("device")], responses=problems(409))


@_open.get("/healthz")
async def healthz() -> Health:
    """The process is alive."""
    return health("edge")


@_open.get("/readyz", responses={503: {"model": Health}})
async def readyz(edge: TheEdge, response: Response) -> Health:
    """The edge is registered with the cloud, and Redis answers."""
    why, membership = await unavailable(edge.store), edge.membership
    refusal = f": {membership.refusal}" if membership.refusal else ""
    found = {
        f"Redis: {why}": why is None,
        edge.needs.lacks: why is not None or not edge.needs.lacks,
        f"the cloud{refusal}": membership.registered,
    }
    missing = tuple(name for name, ready in found.items() if not ready)
    response.status_code = 503 if missing else 200
    return health("edge", missing, tuple(filter(None, [membership.clock_note])))


@_cloud.get("/nonce")
async def nonce(edge: TheEdge) -> NonceAnswer:
    """The cloud calls it back: the nonce shows that this process sent the registration."""
    return NonceAnswer(nonce=edge.membership.registration.nonce)


@_device.post("/heartbeats", responses=problems(404))
async def heartbeats(beat: AgentHeartbeat, request: Request, edge: TheEdge) -> AgentHeartbeatAnswer:
    """Notes that an agent is alive; answers with the runs that were deleted."""
    check_speaker(request, "device", beat.agent)
    edge.metrics.heartbeats.inc()
    if edge.roster.record_heartbeat(beat):
        edge.membership.send_heartbeat_now()
    return AgentHeartbeatAnswer(deleted=edge.roster.deleted, revoked=edge.membership.revoked.newer_than(beat.revoked))


@_cloud.put("/placements")
async def placements(body: KeptPlacement, edge: TheEdge) -> dict[str, str]:
    """Keeps a placement; answers with its digest."""
    return {"digest": await edge.handler.states.keep_placement(body)}


@_cloud.put("/revoked", status_code=204, responses=problems(403, 409))
async def revoked(found: RevokedBody, edge: TheEdge) -> None:
    """Takes the list of certificates that have been revoked."""
    edge.membership.revoked.take(found.revoked)


@_cloud.get("/runs/{run_id}/twins", responses=problems(404))
async def twins(run_id: RunId, edge: TheEdge) -> TwinList:
    """The twins of the run's devices that this edge serves, after the newest committed round."""
    found: TwinList = await edge.handler.states.twins(run_id)
    return found


@_cloud.get("/runs/{run_id}/visits")
async def visits(run_id: RunId, edge: TheEdge) -> VisitsInFlight:
    """The visits of the run that are in flight here; none unless its devices are asynchronous."""
    return VisitsInFlight(ages=edge.handler.flights.ages(run_id))


@_cloud.post(
    "/rounds",
    response_class=Response,
    responses=content(MEDIA_TYPE, "A `RoundAnswer`") | problems(409, 421, 428, 502, 504),
    openapi_extra=record_body("A `RoundOrder`"),
)
async def rounds(request: Request, edge: TheEdge) -> Response:
    """Runs one round of one edge; the answer holds the sum of its updates and a record of each visit."""
    check_recipient(request.headers, edge.settings.edge)
    received = await receive(request, edge.settings.max_body_bytes)
    key = read_order_key(received.header)
    edge.orders.drop_idle()
    work = partial(edge.handler.handle, received, key.spec)
    answered = await edge.orders.answer(key.queue, key.round_no, received.digest, work, request)
    headers = {
        SOCKET_HEADER: str(answered.socket_bytes),
        TESTING_HEADER: f"{answered.testing_s:.6f}",
        ORDER_KEY_HEADER: order_key("rounds", key.run_id, key.round_no, key.edge),
    }
    return BodyResponse(answered.body, headers=headers)


ROUTES = APIRouter()
"""All endpoints of an edge."""
for _part in (
    _open,
    metrics_router(lambda request: request.app.state.edge.metrics),
    _cloud,
    _device,
    reverse_routes("device"),
):
    ROUTES.include_router(_part)
