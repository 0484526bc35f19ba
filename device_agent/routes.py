"""The endpoints of an agent. Only tiers may ask."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.responses import Response

from device_agent.dependencies import Agent, TheAgent, agent_of
from device_agent.settings import AgentSettings
from shared.federation.messages import UploadOrder, WaveId
from shared.federation.order_keys import lane_in, seat_key, stage_of
from shared.federation.timeouts import PROFILE_HEADER
from shared.service.api.health import Health
from shared.service.api.membership import NonceAnswer
from shared.service.app import health
from shared.service.auth import guard
from shared.service.bodies import BodyResponse, Received, read_body
from shared.service.body_limit import BodyLimit
from shared.service.metrics import metrics_router
from shared.service.openapi import content, describe, problems, record_body
from shared.service.order_headers import (
    EDGE_URL_HEADER,
    MEDIA_TYPE,
    PLACE_HEADER,
    TESTING_HEADER,
    check_recipient,
    order_key,
)
from shared.wire import codec


def install(app: FastAPI, settings: AgentSettings) -> None:
    """Add the endpoints."""
    app.add_middleware(BodyLimit, tokens=(settings.common.tier_token,), apart=("/visits", "/uploads"))
    guarded = guard(settings.common.tier_token, settings.allowed_networks, "tier", hosts=settings.allowed_hosts)
    tier = Depends(guarded)
    app.include_router(_open)
    token = settings.common.tier_token
    app.include_router(metrics_router(settings, token, "tier", lambda request: agent_of(request).metrics))
    app.include_router(_tier, dependencies=[tier])
    app.openapi = describe(app)  # type: ignore[method-assign]


_open = APIRouter()
_tier = APIRouter()


@_open.get("/healthz")
async def healthz() -> Health:
    """Alive."""
    return health("agent")


@_open.get("/readyz", responses={503: {"model": Health}})
async def readyz(agent: TheAgent, response: Response) -> Health:
    """Registered and heard by an edge."""
    missing = () if agent.membership.home else ("an edge that hears this agent",)
    response.status_code = 503 if missing else 200
    return health("agent", missing)


@_tier.get("/nonce")
async def nonce(agent: TheAgent) -> NonceAnswer:
    """Called back by the cloud: shows that this process sent the registration."""
    return NonceAnswer(nonce=agent.membership.hello.nonce)


@_tier.post(
    "/visits",
    response_class=Response,
    responses=content(MEDIA_TYPE, "A `VisitAnswer`") | problems(409, 421),
    openapi_extra=record_body("A `VisitOrder`"),
)
async def visits(request: Request, agent: TheAgent) -> Response:
    """Run the visits of one wave; the answer holds reports and updates."""
    body, digest = await read_body(request, agent.settings.max_body_bytes)
    stage, edge = stage_of(body)
    lane, profile = lane_in(body), request.headers.get(PROFILE_HEADER)
    received, n_bytes = Received(body), len(body)
    del body
    work = partial(agent.host.visits, received, profile=profile)
    return await _answer(request, agent, "visits", stage, edge, lane, digest, work, n_bytes)


@_tier.post(
    "/uploads",
    response_class=Response,
    responses=content(MEDIA_TYPE, "An `UploadAnswer`") | problems(409, 421),
    openapi_extra=record_body("An `UploadOrder`"),
)
async def uploads(request: Request, agent: TheAgent) -> Response:
    """Send held updates."""
    body, digest = await read_body(request, agent.settings.max_body_bytes)
    order = codec.decode(UploadOrder, body)
    lane, work = seat_key(order.spec, [*order.seats, *order.late]), partial(agent.host.uploads, order, len(body))
    return await _answer(request, agent, "uploads", order.stage, order.edge, lane, digest, work, len(body))


async def _answer(
    request: Request,
    agent: Agent,
    what: str,
    stage: WaveId,
    edge: int,
    lane: int | None,
    digest: str,
    work: Callable[[Event], Any],
    n_bytes: int,
) -> Response:
    """The answer to an order, made once; while it is made, the edge hears from us.

    With `clock: real` an edge that hangs up has broken the visit off: nobody asks for it again.
    """
    check_recipient(request.headers, agent.membership.hello.agent)
    line = _line(stage, edge, lane)
    agent.orders.drop_unless(lambda other: _may_come_again(other, line))
    where = order_key(
        what, stage.run_id, stage.round_no, stage.edge_round, stage.wave, edge, *([] if lane is None else [lane])
    )
    grace_s = None if lane is None else 0.0
    with agent.membership.working_for(request.headers.get(EDGE_URL_HEADER, "")):
        made = await agent.orders.answer(line, where, digest, work, request, grace_s=grace_s)
    agent.metrics.answered(n_bytes, made.body.n_bytes)
    return BodyResponse(made.body, headers={PLACE_HEADER: where, TESTING_HEADER: f"{made.testing_s:.6f}"})


def _line(stage: WaveId, edge: int, lane: int | None) -> tuple[Any, ...]:
    """Orders that follow each other: those of a home; where each seat has its own lane, those of a wave for it."""
    home = (stage.run_id, edge)
    return home if lane is None else (*home, stage.round_no, stage.edge_round, stage.wave, lane)


def _may_come_again(line: tuple[Any, ...], newest: tuple[Any, ...]) -> bool:
    """Whether orders of a line may still come: one run trains at a time, and the waves of a home follow each other."""
    return line[0] == newest[0] and (line[1] != newest[1] or line[2:5] >= newest[2:5])
