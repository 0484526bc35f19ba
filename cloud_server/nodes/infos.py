"""Registered nodes as the API shows them."""

from __future__ import annotations

from cloud_server.nodes.registry import Registry
from shared.core.errors import NotFound
from shared.core.number_sets import EMPTY, NumberSet
from shared.service.api.nodes import AgentInfo, EdgeInfo


def agent_info(registry: Registry, agent: str, seats: NumberSet = EMPTY) -> AgentInfo:
    """An agent as the API shows it, with its seats.

    Raises:
        NotFound: no such agent.
    """
    entry, seen = registry.agents.get(agent), registry.seen_agents.get(agent)
    if entry is None or seen is None:
        raise NotFound(f"no agent {agent!r}")
    return AgentInfo(
        agent=agent,
        name=entry.name,
        state=registry.agent_state(agent, registry.clock()),
        last_seen_s=round(registry.clock() - seen.at, 3),
        devices=entry.devices,
        profile=entry.effective_profile,
        own_profile=entry.profile,
        edge=seen.edge,
        seats=seats,
        visiting=seen.visiting,
        online=entry.online,
        reason=registry.agent_reason(agent),
        clock_ahead_s=seen.ahead_s,
    )


def edge_info(registry: Registry, edge: str) -> EdgeInfo:
    """An edge as the API shows it."""
    seen = registry.seen_edges[edge]
    return EdgeInfo(
        edge=edge,
        name=registry.edges[edge].name,
        url=registry.edges[edge].url,
        state=registry.edge_state(edge, registry.clock()),
        reason=registry.edge_reason(edge),
        clock_ahead_s=seen.ahead_s,
        last_seen_s=round(registry.clock() - seen.at, 3),
        n_agents=sum(seen.edge == edge and registry.agent_is_live(name) for name, seen in registry.seen_agents.items()),
    )
