"""Who is there, and changing that: what `/topology` and `/agents` answer with, and what the dashboard shows."""

from __future__ import annotations

from cloud_server.dependencies import Cloud
from shared.core.errors import BadInput, Conflict
from shared.core.validation import check_known
from shared.service.api.nodes import AgentChange, AgentInfo, TopologyInfo
from shared.simulation import PROFILES


def agent_of(cloud: Cloud, agent: str) -> AgentInfo:
    """One device agent, with its seats in the run that trains.

    Raises:
        NotFound: there is none of that id.
    """
    return cloud.registry.agent_info(agent, cloud.runs.seats_by_agent().get(agent, ()))


def agents_of(cloud: Cloud) -> tuple[AgentInfo, ...]:
    """All device agents."""
    registry, seats = cloud.registry, cloud.runs.seats_by_agent()
    return tuple(registry.agent_info(agent, seats.get(agent, ())) for agent in sorted(registry.agents))


async def topology_of(cloud: Cloud) -> TopologyInfo:
    """What is there, how many devices are wanted, and which fleet makes that so."""
    course = cloud.runs.executor
    return TopologyInfo(
        wanted=await cloud.fleet.wanted(),
        present=cloud.fleet.present(),
        n_devices=cloud.registry.n_devices(),
        n_agents=len(cloud.registry.live_agents()),
        fleet=cloud.fleet.info(),
        edges=tuple(cloud.registry.edge_info(edge) for edge in sorted(cloud.registry.edges)),
        agents=agents_of(cloud),
        active_run=course.info.run if course else None,
    )


async def change_agent(cloud: Cloud, agent: str, change: AgentChange) -> AgentInfo:
    """Take a device agent offline, bring it back, or give it a profile; all from the next round on.

    Raises:
        NotFound: there is none of that id.
        BadInput: the catalogue has no profile of that name; the message names the nearest.
        Conflict: the run that trains does not take profiles from its agents.
    """
    changes: dict[str, bool | str | None] = {}
    if "online" in change.model_fields_set:
        changes["online"] = change.online
    if "profile" in change.model_fields_set:
        agent_of(cloud, agent)
        if change.profile is not None:
            _check_profile(change.profile)
        _profiles_are_the_agents(cloud)
        changes["given_profile"] = change.profile
    await cloud.registry.change(agent, **changes)
    return agent_of(cloud, agent)


def _check_profile(name: str) -> None:
    try:
        check_known("profile", name, PROFILES)
    except ValueError as error:
        raise BadInput(str(error), field="profile") from None


def _profiles_are_the_agents(cloud: Cloud) -> None:
    """See that the run that trains, if there is one, takes its seats' profiles from their agents.

    Raises:
        Conflict: its spec says which seat has which.
    """
    course = cloud.runs.executor
    if course is not None and not course.info.spec.devices.by_agent:
        raise Conflict(
            f"run {course.info.run} trains, whose spec says which profiles its seats have; "
            "an agent's profile counts with devices: {profile: agent}",
            field="profile",
        )
