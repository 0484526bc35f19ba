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
from shared.service.auth import guarded
from shared.service.openapi import problems

router = APIRouter(tags=["tiers"], dependencies=[guarded("tier")])


def _source(request: Request) -> str | None:
    return request.client.host if request.client else None


@router.post("/agents")
async def register_agent(registration: AgentRegistration, request: Request, cloud: TheCloud) -> AgentRegistrationAnswer:
    """Register an agent."""
    edge_url = await cloud.registry.register_agent(registration, _source(request))
    cloud.metrics.registrations.labels("agent").inc()
    return AgentRegistrationAnswer(edge_url=edge_url, runs=tuple(await cloud.repository.run_ids()))


@router.post("/edges")
async def register_edge(registration: EdgeRegistration, request: Request, cloud: TheCloud) -> EdgeRegistrationAnswer:
    """Register an edge."""
    url = await cloud.registry.register_edge(registration, _source(request))
    cloud.metrics.registrations.labels("edge").inc()
    return EdgeRegistrationAnswer(url=url, runs=tuple(await cloud.repository.run_ids()))


@router.post("/heartbeats", responses=problems(404))
async def heartbeat(body: EdgeHeartbeat, cloud: TheCloud) -> HeartbeatAnswer:
    """Take the heartbeat of an edge, with the agents that it hears."""
    answer = await cloud.registry.record_heartbeat(body)
    cloud.metrics.heartbeats.inc()
    return answer.replace(deleted=cloud.repository.deleted())


@router.post("/fleet", responses=problems(409))
async def fleet(report: FleetReport, cloud: TheCloud) -> FleetOrders:
    """Take the report of a fleet; returns the wanted numbers of devices, and the agents that it may stop."""
    return await cloud.fleet.receive_report(report)
