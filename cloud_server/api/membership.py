"""The cloud's endpoints for other tiers and the fleet: registration, heartbeats, reports. Only with the tier token."""

from __future__ import annotations

from fastapi import APIRouter, Request

from cloud_server.dependencies import TheCloud
from shared.service.api.membership import (
    AgentRegistration,
    AgentRegistrationAnswer,
    EdgeHeartbeat,
    EdgeRegistration,
    EdgeRegistrationAnswer,
    FleetOrders,
    FleetReport,
    HeartbeatAnswer,
)
from shared.service.openapi import problems

router = APIRouter(tags=["tiers"])


def _source(request: Request) -> str | None:
    return request.client.host if request.client else None


@router.post("/agents")
async def greet_agent(hello: AgentRegistration, request: Request, cloud: TheCloud) -> AgentRegistrationAnswer:
    """Register an agent."""
    edge_url = await cloud.registry.register_agent(hello, _source(request))
    cloud.metrics.registrations.labels("agent").inc()
    return AgentRegistrationAnswer(edge_url=edge_url, runs=tuple(await cloud.repository.run_ids()))


@router.post("/edges")
async def greet_edge(hello: EdgeRegistration, request: Request, cloud: TheCloud) -> EdgeRegistrationAnswer:
    """Register an edge."""
    url = await cloud.registry.register_edge(hello, _source(request))
    cloud.metrics.registrations.labels("edge").inc()
    return EdgeRegistrationAnswer(url=url, runs=tuple(await cloud.repository.run_ids()))


@router.post("/heartbeats", responses=problems(404))
async def heartbeat(beat: EdgeHeartbeat, cloud: TheCloud) -> HeartbeatAnswer:
    """An edge is alive, and so are the agents that it hears."""
    answer = await cloud.registry.beat(beat)
    cloud.metrics.heartbeats.inc()
    return answer.replace(deleted=cloud.repository.deleted())


@router.post("/fleet", responses=problems(409))
async def fleet(report: FleetReport, cloud: TheCloud) -> FleetOrders:
    """What a fleet runs; it learns how many devices are wanted, and whom it may stop."""
    return await cloud.fleet.hear(report)
