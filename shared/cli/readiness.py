"""What a topology still lacks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shared.cli.client import Client
from shared.core.errors import StrataError
from shared.topology import TopologyInfo


def look(client: Client, edges: Sequence[str], agents: Mapping[str, int]) -> tuple[TopologyInfo | None, list[str]]:
    """What the cloud sees, and the names of what is missing.

    Args:
        client: of the cloud.
        edges: the names that must be there.
        agents: the agents that must be there, with their devices.
    """
    try:
        info, ready = client.topology(), client.readiness()
    except StrataError as error:
        return None, [f"cloud ({error.detail})"]
    here = {edge.edge for edge in info.edges if edge.state == "alive"}
    missing = [name for name in edges if name not in here]
    alive = {agent.name for agent in info.devices if agent.state == "alive"}
    absent = [name for name in agents if name not in alive]
    wanted = sum(agents.values())
    if absent or info.n_devices < wanted:
        who = f" ({', '.join(absent)})" if absent else ""
        missing.append(f"{wanted - info.n_devices} of {wanted} devices{who}")
    if not missing and ready.status != "ok":  # everybody is there, and the cloud wants something else
        missing = list(ready.missing) or ["something that the cloud does not name"]
    return info, missing
