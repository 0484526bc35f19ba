"""The endpoints of nodes: `/topology`, `/edges`, `/agents`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from cloud_server import node_views
from cloud_server.api.runs import Name
from cloud_server.dependencies import OWNER_WRITES, TheCloud
from cloud_server.nodes.twin_client import twins_at, twins_of
from shared.core.number_sets import EMPTY
from shared.service.api.nodes import AgentChange, AgentInfo, AgentPage, EdgePage, TopologyInfo, WantedTopology
from shared.service.auth import ONLY_ADMIN, guarded
from shared.service.json_bodies import unambiguous
from shared.service.openapi import problems
from shared.simulation.digital_twin import TwinList

router = APIRouter(tags=["topology"], dependencies=[guarded("API"), OWNER_WRITES, unambiguous()])
RunQuery = Annotated[str, Query(max_length=300, description="A run's id, or `latest`.")]


@router.get("/topology")
async def get_topology(cloud: TheCloud) -> TopologyInfo:
    """All registered nodes, the wanted number of devices, and the fleet that scales them."""
    return await node_views.topology_of(cloud)


@router.put("/topology", dependencies=[ONLY_ADMIN], responses=problems(409))
async def set_wanted(body: WantedTopology, cloud: TheCloud) -> TopologyInfo:
    """Set how many devices and edges are wanted; the fleet starts and stops agents and edges accordingly."""
    await cloud.fleet.set_wanted(body.devices, body.edges)
    return await node_views.topology_of(cloud)


@router.get("/edges")
async def edges(cloud: TheCloud) -> EdgePage:
    """The registered edges."""
    return EdgePage(edges=node_views.edges_of(cloud))


@router.get("/edges/{edge}/twins", responses=problems(404, 502, 504))
async def edge_twins(edge: Name, cloud: TheCloud, run: RunQuery = "latest") -> TwinList:
    """The digital twins that an edge keeps of its workers in a run, as of the last committed round."""
    return await twins_at(cloud.registry, edge, (await cloud.repository.info(run)).run)


@router.get("/agents")
async def agents(cloud: TheCloud) -> AgentPage:
    """The registered agents."""
    return AgentPage(agents=node_views.agents_of(cloud))


@router.get("/agents/{agent}", responses=problems(404))
async def agent_info(agent: Name, cloud: TheCloud) -> AgentInfo:
    """One agent."""
    return node_views.agent_of(cloud, agent)


@router.get("/agents/{agent}/twin", responses=problems(404, 502, 504))
async def agent_twins(agent: Name, cloud: TheCloud, run: RunQuery = "latest") -> TwinList:
    """The digital twins of the devices that an agent hosts in a run."""
    node_views.agent_of(cloud, agent)
    info = await cloud.repository.info(run)
    placement = await cloud.repository.placement(info.run)
    return await twins_of(cloud.registry, info.run, agent, placement.agents.get(agent, EMPTY))


@router.patch("/agents/{agent}", dependencies=[ONLY_ADMIN], responses=problems(404, 409))
async def change_agent(agent: Name, body: AgentChange, cloud: TheCloud) -> AgentInfo:
    """Take an agent offline, bring it back, or change its profile; each holds from the next round on."""
    return await node_views.change_agent(cloud, agent, body)
