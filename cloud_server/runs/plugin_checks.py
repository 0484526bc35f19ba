"""Whether the nodes have the plug-ins that a run uses, in the cloud's version."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cloud_server.nodes.liveness import AgentEntry
from cloud_server.nodes.registry import Registry
from shared.core.errors import Conflict
from shared.federation.plugin_checks import differing_package, packages_of
from shared.spec.experiment import ExperimentSpec

MAX_NAMED = 10
"""Most nodes that a message names."""


def check_nodes(registry: Registry, spec: ExperimentSpec) -> None:
    """Checks the live edges and agents.

    Raises:
        Conflict: one lacks a plug-in that the spec uses, or has another version; names tier, node and package.
    """
    found = list(_differences(registry, spec))
    if found:
        more = f" (and {len(found) - MAX_NAMED} more)" if len(found) > MAX_NAMED else ""
        raise Conflict("; ".join(found[:MAX_NAMED]) + more)


def _differences(registry: Registry, spec: ExperimentSpec) -> Iterator[str]:
    needed = packages_of(spec)
    for name in registry.live_edges() if needed else ():
        if why := differing_package(needed, registry.edges[name].plugins):
            yield f"edge {name}: {why}"
    for agent in registry.live_agents() if needed else ():
        if why := differing_package(needed, agent.plugins):
            yield f"agent {agent.name}: {why}"


def with_plugins(agents: Sequence[AgentEntry], spec: ExperimentSpec) -> list[AgentEntry]:
    """The agents that have the plug-ins of a spec: one that registers during a run may not."""
    needed = packages_of(spec)
    return [agent for agent in agents if not differing_package(needed, agent.plugins)]
