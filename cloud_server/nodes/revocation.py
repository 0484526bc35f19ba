"""What follows a revocation: the cloud forgets the node and tells others at once.

Nodes that this does not reach hear of it with their heartbeats, or when they ask the cloud.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from cloud_server.nodes.liveness import LastSeen
from cloud_server.nodes.registry import Registry
from shared.core.errors import StrataError
from shared.identity.names import Identity, NodeClass, agent_identity, edge_identity
from shared.service.api.identities import RevokedBody
from shared.storage import redis_keys

log = logging.getLogger(__name__)
ANSWER_S = 5.0
"""Longest wait for a node, in wall seconds."""
AT_ONCE = 50
"""Nodes that are told at the same time."""
TELLING: set[asyncio.Task[None]] = set()
"""Nodes that are told in the background: the event loop alone would not keep the tasks."""


async def forget(registry: Registry, node_class: NodeClass, name: str) -> None:
    """Forget a node at once; an agent's seats move to others."""
    known: dict[str, tuple[dict[str, Any], dict[str, LastSeen], str]] = {
        "device": (registry.agents, registry.seen_agents, redis_keys.cloud_agent(name)),
        "edge": (registry.edges, registry.seen_edges, redis_keys.cloud_edge(name)),
    }
    if node_class in known:
        entries, seen, key = known[node_class]
        entries.pop(name, None)
        seen.pop(name, None)
        registry.changed_at = registry.clock()
        await registry.stored.delete(key)


async def announce(registry: Registry, revoked: str) -> None:
    """Send the signed list to all live edges and agents; agents then leave an edge that has been revoked."""
    edges = [(edge_identity(name), registry.edges[name].own_url) for name in registry.live_edges()]
    agents = [
        (agent_identity(name), entry.url) for name, entry in registry.agents.items() if registry.agent_is_live(name)
    ]
    free, body = asyncio.Semaphore(AT_ONCE), RevokedBody(revoked=revoked).model_dump(mode="json")

    async def tell(node: Identity, url: str) -> None:
        async with free:
            try:
                await registry.caller.call_json("PUT", f"{url}/revoked", body, limit_s=ANSWER_S, peer=node)
            except StrataError as error:
                log.warning("%s hears of a revocation with its heartbeats only: %s", node, error.detail)

    # Edges first; who is not told by then is told while the caller goes on.
    told = {asyncio.create_task(tell(node, url)) for node, url in edges} | {
        asyncio.create_task(tell(node, url)) for node, url in agents
    }
    if told:
        _, late = await asyncio.wait(told, timeout=ANSWER_S)
        TELLING.update(late)
        for task in late:
            task.add_done_callback(TELLING.discard)
