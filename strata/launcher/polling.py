"""What a topology still lacks until it is ready, as its cloud knows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shared.core.errors import StrataError
from shared.service.api.nodes import TopologyInfo
from strata.api.topology_client import TopologyClient


def poll_topology(
    client: TopologyClient, edges: Sequence[str], agents: Mapping[str, int]
) -> tuple[TopologyInfo | None, list[str]]:
    """The topology as the cloud knows it, and a description of every edge and agent that is missing.

    Args:
        client: client of the cloud.
        edges: names of the edges that must be connected.
        agents: names of the agents that must be connected, with their numbers of devices.
    """
    try:
        info, ready = client.topology(), client.readiness()
    except StrataError as error:
        return None, [f"cloud ({error.detail})"]
    here = {edge.edge for edge in info.edges if edge.state == "alive"}
    missing = [name for name in edges if name not in here]
    alive = {agent.name for agent in info.agents if agent.state == "alive"}
    absent = [name for name in agents if name not in alive]
    wanted = sum(agents.values())
    if absent or info.n_devices < wanted:
        who = f" ({', '.join(absent)})" if absent else ""
        missing.append(f"{wanted - info.n_devices} of {wanted} devices{who}")
    if not missing and ready.status != "ok":  # all are connected, and the cloud waits for something else
        missing = list(ready.missing) or ["the cloud is not ready and gives no reason"]
    return info, missing
