"""The endpoints of an agent. Only tiers may ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from starlette.responses import Response

from device_agent.host import stage_of
from shared import wire
from shared.messages import UploadOrder
from shared.service import guard, health, metrics_response
from shared.tiers import NonceAnswer
from shared.transport import BodyResponse, read_body

if TYPE_CHECKING:
    from device_agent.app import Agent
    from device_agent.settings import AgentSettings

EDGE_URL_HEADER = "strata-edge-url"


def agent_of(request: Request) -> Agent:
    """The agent behind the app."""
    found: Agent = request.app.state.agent
    return found


def install(app: FastAPI, settings: AgentSettings) -> None:
    """Add the endpoints."""
    tier = Depends(guard(settings.common.tier_token, settings.allowed_networks, "tier"))
    app.include_router(_open)
    app.include_router(_tier, dependencies=[tier])


_open = APIRouter()
_tier = APIRouter()
TheAgent = Annotated[Any, Depends(agent_of)]


@_open.get("/healthz")
async def healthz() -> dict[str, Any]:
    """Alive."""
    return health("agent").model_dump(mode="json")


@_open.get("/readyz")
async def readyz(agent: TheAgent, response: Response) -> dict[str, Any]:
    """Registered and heard by an edge."""
    missing = () if agent.membership.home else ("an edge that hears this agent",)
    response.status_code = 503 if missing else 200
    return health("agent", missing).model_dump(mode="json")


@_tier.get("/metrics")
async def metrics(agent: TheAgent) -> Response:
    """Prometheus metrics."""
    return metrics_response(agent.registry)


@_tier.get("/nonce")
async def nonce(agent: TheAgent) -> NonceAnswer:
    """Called back by the cloud: shows that this process sent the registration."""
    return NonceAnswer(nonce=agent.membership.hello.nonce)


@_tier.post("/visits")
async def visits(request: Request, agent: TheAgent) -> Response:
    """Run the visits of one wave; the answer holds reports and updates."""
    body = await read_body(request, agent.settings.max_body_bytes)
    digest = wire.digest_of(body, request.headers.get("strata-digest"))
    if EDGE_URL_HEADER in request.headers:
        agent.membership.met(request.headers[EDGE_URL_HEADER])
    stage, edge = stage_of(body)
    place = ("visits", stage.round_no, stage.edge_round, stage.wave)
    answer = await agent.once.answer(
        (stage.run_id, edge), place, digest, lambda stop: agent.host.visits(body, stop), request
    )
    return BodyResponse(answer)


@_tier.post("/uploads")
async def uploads(request: Request, agent: TheAgent) -> Response:
    """Send held updates."""
    body = await read_body(request, agent.settings.max_body_bytes)
    digest = wire.digest_of(body, request.headers.get("strata-digest"))
    order = wire.decode(UploadOrder, body)
    stage = order.stage
    place = ("uploads", stage.round_no, stage.edge_round, stage.wave)
    answer = await agent.once.answer(
        (stage.run_id, order.edge), place, digest, lambda stop: agent.host.uploads(order), request
    )
    return BodyResponse(answer)
