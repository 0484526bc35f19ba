"""The cloud's endpoints for other tiers and the fleet: registration, heartbeats, reports. Only for tiers."""

from __future__ import annotations

from fastapi import APIRouter, Request

from cloud_server.dependencies import OWNER_WRITES, Cloud, TheCloud
from cloud_server.nodes.revocation import forget
from shared.core.errors import Forbidden
from shared.identity.names import NodeClass
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
from shared.service.peers import check_speaker, peer_in
from shared.service.reverse.routes import TheDesk, reverse_routes

router = APIRouter(tags=["tiers"], dependencies=[OWNER_WRITES], responses=problems(409))
router.include_router(reverse_routes("node"))


def _source(request: Request) -> str | None:
    return request.client.host if request.client else None


async def _refuse_revoked(request: Request, cloud: Cloud, node_class: NodeClass, name: str) -> None:
    """Undo a registration that began before the node was revoked.

    Raises:
        Forbidden: it was.
    """
    peer = peer_in(request)
    if peer is not None and cloud.identities is not None and peer.serial in cloud.identities.revoked:
        await forget(cloud.registry, node_class, name)
        raise Forbidden(f"the certificate of {peer.identity} has been revoked")


@router.post("/agents", dependencies=[guarded("device")], responses=problems(403, 409, 429))
async def register_agent(registration: AgentRegistration, request: Request, cloud: TheCloud) -> AgentRegistrationAnswer:
    """Register an agent."""
    check_speaker(request, "device", registration.agent)
    chosen = await cloud.registry.register_agent(registration, _source(request))
    await _refuse_revoked(request, cloud, "device", registration.agent)
    cloud.metrics.registrations.labels("agent").inc()
    edge, url = (chosen.edge, chosen.url) if chosen else ("", "")
    return AgentRegistrationAnswer(
        edge=edge,
        edge_url=url,
        runs=tuple(await cloud.repository.run_ids()),
        left_out=cloud.registry.agents[registration.agent].left_out,
        cloud_key=cloud.signed_by,
        clock_s=cloud.registry.wall(),
    )


@router.post("/edges", dependencies=[guarded("edge")], responses=problems(403, 409, 429))
async def register_edge(registration: EdgeRegistration, request: Request, cloud: TheCloud) -> EdgeRegistrationAnswer:
    """Register an edge."""
    check_speaker(request, "edge", registration.edge)
    url = await cloud.registry.register_edge(registration, _source(request))
    await _refuse_revoked(request, cloud, "edge", registration.edge)
    cloud.metrics.registrations.labels("edge").inc()
    return EdgeRegistrationAnswer(
        url=url,
        runs=tuple(await cloud.repository.run_ids()),
        left_out=cloud.registry.edges[registration.edge].left_out,
        cloud_key=cloud.signed_by,
        clock_s=cloud.registry.wall(),
    )


@router.post("/heartbeats", dependencies=[guarded("edge")], responses=problems(404))
async def heartbeat(body: EdgeHeartbeat, request: Request, cloud: TheCloud, desk: TheDesk) -> HeartbeatAnswer:
    """Take the heartbeat of an edge, with the agents that it hears."""
    check_speaker(request, "edge", body.edge)
    answer = await cloud.registry.record_heartbeat(body)
    for process in body.missing:
        desk.call(process, body.edge, cloud.registry.edges[body.edge].url)
    cloud.metrics.heartbeats.inc()
    return answer.replace(deleted=cloud.repository.deleted(), revoked=cloud.revoked_since(body.revoked))


@router.post("/fleet", dependencies=[guarded("fleet")], responses=problems(409))
async def fleet(report: FleetReport, request: Request, cloud: TheCloud) -> FleetOrders:
    """Take the report of a fleet; returns the wanted numbers of devices, and the agents that it may stop."""
    check_speaker(request, "fleet", report.fleet)
    return await cloud.fleet.receive_report(report)
