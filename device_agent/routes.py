"""The endpoints of an agent. Those for orders accept requests from edges and the cloud only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from threading import Event

from fastapi import APIRouter, Request
from starlette.responses import Response

from device_agent.dependencies import Agent, TheAgent
from device_agent.membership import EdgeAddress
from shared.federation.kept_states import read_keep_from
from shared.federation.order_keys import OrderKey, read_order_key
from shared.federation.real_time import PROFILE_HEADER
from shared.service.api.health import Health
from shared.service.api.identities import RevokedBody
from shared.service.api.membership import NonceAnswer
from shared.service.app import health
from shared.service.auth import guarded
from shared.service.bodies import BodyResponse, EncodedAnswer, Received, receive
from shared.service.metrics import metrics_router
from shared.service.openapi import content, problems, record_body
from shared.service.order_headers import (
    ASSIGNMENT_HEADER,
    EDGE_NAME_HEADER,
    EDGE_URL_HEADER,
    MEDIA_TYPE,
    ORDER_KEY_HEADER,
    TESTING_HEADER,
    check_recipient,
    order_key,
)
from shared.service.peers import check_speaker

_open = APIRouter()
_cloud = APIRouter(dependencies=[guarded("cloud")], responses=problems(409))
_edge = APIRouter(dependencies=[guarded("edge")], responses=problems(409))


@_open.get("/healthz")
async def healthz() -> Health:
    """The process answers."""
    return health("agent")


@_open.get("/readyz", responses={503: {"model": Health}})
async def readyz(agent: TheAgent, response: Response) -> Health:
    """Ready once the agent is registered and an edge receives its heartbeats."""
    membership = agent.membership
    refusal = f": {membership.refusal}" if membership.refusal else ""
    no_edge = "" if membership.heartbeat_edge else f"an edge that receives this agent's heartbeats{refusal}"
    missing = tuple(filter(None, [no_edge, membership.needs.lacks]))
    response.status_code = 503 if missing else 200
    return health("agent", missing, tuple(filter(None, [membership.clock_note])))


@_cloud.get("/nonce")
async def nonce(agent: TheAgent) -> NonceAnswer:
    """The nonce of this agent's registration; the cloud calls back for it to verify who registered."""
    return NonceAnswer(nonce=agent.membership.registration.nonce)


@_cloud.put("/revoked", status_code=204, responses=problems(403, 409))
async def revoked(found: RevokedBody, agent: TheAgent) -> None:
    """Takes the list of certificates that have been revoked."""
    agent.membership.revoked.take(found.revoked)


@_edge.post(
    "/visits",
    response_class=Response,
    responses=content(MEDIA_TYPE, "A `VisitAnswer`") | problems(403, 409, 421),
    openapi_extra=record_body("A `VisitOrder`"),
)
async def visits(request: Request, agent: TheAgent) -> Response:
    """Runs the visits of one wave; the answer holds their outcomes, and reports or updates."""
    profile, keep_from = request.headers.get(PROFILE_HEADER), read_keep_from(request.headers)
    work = partial(agent.host.visits, profile=profile, keep_from=keep_from)
    return await _answer_once(request, agent, "visits", work)


@_edge.post(
    "/uploads",
    response_class=Response,
    responses=content(MEDIA_TYPE, "An `UploadAnswer`") | problems(403, 409, 421),
    openapi_extra=record_body("An `UploadOrder`"),
)
async def uploads(request: Request, agent: TheAgent) -> Response:
    """Sends held updates that the edge has admitted."""
    return await _answer_once(request, agent, "uploads", agent.host.uploads)


async def _answer_once(
    request: Request,
    agent: Agent,
    what: str,
    work: Callable[[Received, OrderKey, Event], Awaitable[EncodedAnswer]],
) -> Response:
    """The answer to an order, computed once however often the order is sent; meanwhile the edge gets heartbeats.

    With `clock: real` an edge that closes the connection has given the visit up and does not send the order again.
    """
    edge = EdgeAddress(request.headers.get(EDGE_NAME_HEADER, ""), request.headers.get(EDGE_URL_HEADER, ""))
    check_speaker(request, "edge", edge.name)
    received = await receive(request, agent.settings.max_body_bytes)
    key = read_order_key(received.header)
    check_recipient(request.headers, agent.membership.registration.agent)
    if agent.assignments is not None:
        agent.assignments.check(request.headers.get(ASSIGNMENT_HEADER, ""), edge.name, key.run_id, key.edge, key.seats)
    agent.orders.drop_unless(lambda queue: queue.may_continue(key.queue))
    agent.orders.drop_idle()
    numbers = (key.round_no, key.edge_round, key.wave, key.edge, *([] if key.seat is None else [key.seat]))
    where, grace_s = order_key(what, key.run_id, *numbers), None if key.seat is None else 0.0
    run = partial(work, received, key)
    with agent.membership.working_for(edge):
        answer = await agent.orders.answer(key.queue, where, received.digest, run, request, grace_s=grace_s)
    agent.metrics.answered(received.n_bytes, answer.body.n_bytes)
    return BodyResponse(answer.body, headers={ORDER_KEY_HEADER: where, TESTING_HEADER: f"{answer.testing_s:.6f}"})


ROUTES = APIRouter()
"""All endpoints of an agent."""
for _part in (_open, metrics_router(lambda request: request.app.state.agent.metrics), _cloud, _edge):
    ROUTES.include_router(_part)
