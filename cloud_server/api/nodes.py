"""Who is there, and who should be: `/topology`, `/edges`, `/devices`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from cloud_server import topology
from cloud_server.api.runs import Name
from cloud_server.dependencies import TheCloud
from cloud_server.nodes.twins import twins_at, twins_of
from shared.service.api.nodes import AgentInfo, AgentPage, DeviceChange, EdgePage, TopologyInfo, WantedTopology
from shared.service.openapi import problems
from shared.simulation.digital_twin import TwinList

router = APIRouter(tags=["topology"])
RunQuery = Annotated[str, Query(max_length=300, description="A run's id, or `latest`.")]


@router.get("/topology")
async def get_topology(cloud: TheCloud) -> TopologyInfo:
    """What is there, how many devices are wanted, and which fleet makes that so."""
    return await topology.topology_of(cloud)


@router.put("/topology", responses=problems(409))
async def want(body: WantedTopology, cloud: TheCloud) -> TopologyInfo:
    """Write the wanted number of devices; the fleet makes it so."""
    await cloud.fleet.want(body.devices)
    return await topology.topology_of(cloud)


@router.get("/edges")
async def edges(cloud: TheCloud) -> EdgePage:
    """The registered edges."""
    return EdgePage(edges=tuple(cloud.registry.edge_info(edge) for edge in sorted(cloud.registry.edges)))


@router.get("/edges/{edge}/twins", responses=problems(404, 502, 504))
async def edge_twins(edge: Name, cloud: TheCloud, run: RunQuery = "latest") -> TwinList:
    """The digital twins that an edge keeps of its workers in a run, after the newest committed round."""
    return await twins_at(cloud.registry, edge, (await cloud.repository.info(run)).run)


@router.get("/devices")
async def devices(cloud: TheCloud) -> AgentPage:
    """The registered device agents."""
    return AgentPage(devices=topology.agents_of(cloud))


@router.get("/devices/{agent}", responses=problems(404))
async def device(agent: Name, cloud: TheCloud) -> AgentInfo:
    """One device agent."""
    return topology.agent_of(cloud, agent)


@router.get("/devices/{agent}/twin", responses=problems(404, 502, 504))
async def device_twin(agent: Name, cloud: TheCloud, run: RunQuery = "latest") -> TwinList:
    """The digital twins of the seats that a device agent has in a run: of a device of its own, one."""
    topology.agent_of(cloud, agent)
    info = await cloud.repository.info(run)
    binding = await cloud.repository.binding(info.run)
    seats = {seat for seat, name in binding.agents.items() if name == agent}
    return await twins_of(cloud.registry, info.run, agent, seats)


@router.patch("/devices/{agent}", responses=problems(404, 409))
async def change_device(agent: Name, body: DeviceChange, cloud: TheCloud) -> AgentInfo:
    """Take a device agent offline, bring it back, or give it a profile; all from the next round on."""
    return await topology.change_device(cloud, agent, body)
