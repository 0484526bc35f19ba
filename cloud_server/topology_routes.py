"""Who is there, and who should be: `/topology`, `/edges`, `/devices`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from cloud_server.dependencies import Cloud, TheCloud
from cloud_server.routes import Name
from cloud_server.twins import twins_at, twins_of
from shared.api import AgentInfo, AgentPage, EdgePage
from shared.errors import Conflict
from shared.openapi import problems
from shared.topology import DeviceChange, TopologyInfo, WantedTopology
from shared.twins import TwinList

router = APIRouter(tags=["topology"])
RunQuery = Annotated[str, Query(max_length=300, description="A run's id, or `latest`.")]


def _agents(cloud: Cloud) -> tuple[AgentInfo, ...]:
    registry, seats = cloud.registry, cloud.runner.seats_by_agent()
    return tuple(registry.agent_info(agent, seats.get(agent, ())) for agent in sorted(registry.agents))


def _agent(cloud: Cloud, agent: str) -> AgentInfo:
    return cloud.registry.agent_info(agent, cloud.runner.seats_by_agent().get(agent, ()))


async def _topology(cloud: Cloud) -> TopologyInfo:
    course = cloud.runner.course
    return TopologyInfo(
        wanted=await cloud.fleet.wanted(),
        present=cloud.fleet.present(),
        n_devices=cloud.registry.n_devices(),
        n_agents=len(cloud.registry.live_agents()),
        fleet=cloud.fleet.info(),
        edges=tuple(cloud.registry.edge_info(edge) for edge in sorted(cloud.registry.edges)),
        devices=_agents(cloud),
        active_run=course.info.run if course else None,
    )


@router.get("/topology")
async def topology(cloud: TheCloud) -> TopologyInfo:
    """What is there, how many devices are wanted, and which fleet makes that so."""
    return await _topology(cloud)


@router.put("/topology", responses=problems(409))
async def want(body: WantedTopology, cloud: TheCloud) -> TopologyInfo:
    """Write the wanted number of devices; the fleet makes it so."""
    await cloud.fleet.want(body.devices)
    return await _topology(cloud)


@router.get("/edges")
async def edges(cloud: TheCloud) -> EdgePage:
    """The registered edges."""
    return EdgePage(edges=tuple(cloud.registry.edge_info(edge) for edge in sorted(cloud.registry.edges)))


@router.get("/edges/{edge}/twins", responses=problems(404, 502, 504))
async def edge_twins(edge: Name, cloud: TheCloud, run: RunQuery = "latest") -> TwinList:
    """The digital twins that an edge keeps of its workers in a run, after the newest committed round."""
    return await twins_at(cloud.registry, edge, (await cloud.archive.info(run)).run)


@router.get("/devices")
async def devices(cloud: TheCloud) -> AgentPage:
    """The registered device agents."""
    return AgentPage(devices=_agents(cloud))


@router.get("/devices/{agent}", responses=problems(404))
async def device(agent: Name, cloud: TheCloud) -> AgentInfo:
    """One device agent."""
    return _agent(cloud, agent)


@router.get("/devices/{agent}/twin", responses=problems(404, 502, 504))
async def device_twin(agent: Name, cloud: TheCloud, run: RunQuery = "latest") -> TwinList:
    """The digital twins of the seats that a device agent has in a run: of a device of its own, one."""
    _agent(cloud, agent)
    info = await cloud.archive.info(run)
    binding = await cloud.archive.binding(info.run)
    seats = {seat for seat, name in binding.agents.items() if name == agent}
    return await twins_of(cloud.registry, info.run, agent, seats)


@router.patch("/devices/{agent}", responses=problems(404, 409))
async def change_device(agent: Name, body: DeviceChange, cloud: TheCloud) -> AgentInfo:
    """Take a device agent offline, bring it back, or give it a profile; all from the next round on."""
    changes: dict[str, bool | str | None] = {}
    if "online" in body.model_fields_set:
        changes["online"] = body.online
    if "profile" in body.model_fields_set:
        _agent(cloud, agent)
        _profiles_are_the_agents(cloud)
        changes["given_profile"] = body.profile
    await cloud.registry.change(agent, **changes)
    return _agent(cloud, agent)


def _profiles_are_the_agents(cloud: Cloud) -> None:
    """See that the run that trains, if there is one, takes its seats' profiles from their agents.

    Raises:
        Conflict: its spec says which seat has which.
    """
    course = cloud.runner.course
    if course is not None and not course.info.spec.devices.by_agent:
        raise Conflict(
            f"run {course.info.run} trains, whose spec says which profiles its seats have; "
            "an agent's profile counts with devices: {profile: agent}",
            field="profile",
        )
