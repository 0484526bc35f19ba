"""The connected nodes: views and changes, for `/topology`, `/agents` and the dashboard."""

from __future__ import annotations

from cloud_server.dependencies import Cloud
from cloud_server.nodes.infos import agent_info, edge_info
from cloud_server.nodes.liveness import require_profile
from shared.core.errors import Conflict
from shared.core.number_sets import EMPTY
from shared.service.api.nodes import AgentChange, AgentInfo, EdgeInfo, TopologyInfo


def agent_of(cloud: Cloud, agent: str) -> AgentInfo:
    """An agent, with its seats in the run that trains.

    Raises:
        NotFound: no agent has that id.
    """
    return agent_info(cloud.registry, agent, cloud.runs.seats_by_agent().get(agent, EMPTY))


def agents_of(cloud: Cloud) -> tuple[AgentInfo, ...]:
    """All registered agents, and those that are refused since they speak another protocol."""
    registry, seats = cloud.registry, cloud.runs.seats_by_agent()
    return registry.others.agents(
        {agent: agent_info(registry, agent, seats.get(agent, EMPTY)) for agent in registry.agents}
    )


def edges_of(cloud: Cloud) -> tuple[EdgeInfo, ...]:
    """All registered edges, and those that are refused since they speak another protocol."""
    registry = cloud.registry
    return registry.others.edges({edge: edge_info(registry, edge) for edge in registry.edges})


async def topology_of(cloud: Cloud) -> TopologyInfo:
    """All registered nodes, how many devices and edges are wanted, and the fleet that scales them."""
    active, wanted = tuple(info.run for info in cloud.runs.training), await cloud.fleet.wanted_devices()
    wanted_edges = await cloud.fleet.wanted_edges()
    return TopologyInfo(
        wanted=wanted,
        wanted_edges=wanted_edges,
        present=cloud.fleet.present(),
        present_edges=cloud.fleet.present_edges(),
        n_devices=cloud.registry.n_devices(),
        n_agents=len(cloud.registry.live_agents()),
        fleet=cloud.fleet.info(),
        edges=edges_of(cloud),
        agents=agents_of(cloud),
        active_run=active[0] if active else None,
        active_runs=active,
        notes=cloud.runs.notes_of_surplus(sum(wanted.values()), wanted_edges or 0),
    )


async def change_agent(cloud: Cloud, agent: str, change: AgentChange) -> AgentInfo:
    """Take an agent offline, bring it back, or change its profile; each holds from the next round on.

    Raises:
        NotFound: no agent has that id.
        BadInput: the catalogue has no profile of that name; the message names the nearest.
        Conflict: the run that trains does not take profiles from its agents.
    """
    changes: dict[str, bool | str | None] = {}
    if "online" in change.model_fields_set:
        changes["online"] = change.online
    if "profile" in change.model_fields_set:
        agent_of(cloud, agent)
        if change.profile is not None:
            require_profile(change.profile)
        _check_profiles_by_agent(cloud)
        changes["given_profile"] = change.profile
    await cloud.registry.change(agent, **changes)
    return agent_of(cloud, agent)


def _check_profiles_by_agent(cloud: Cloud) -> None:
    """Checks that the runs that train, if any, take the profiles of their seats from their agents.

    Raises:
        Conflict: its spec assigns the profiles.
    """
    others = [info.run for info in cloud.runs.training if not info.spec.devices.by_agent]
    if others:
        raise Conflict(
            f"run {others[0]} trains, and the profiles of its devices are those of its spec; "
            "an agent's profile counts where the spec says devices: {profile: agent}, or nothing",
            field="profile",
        )
