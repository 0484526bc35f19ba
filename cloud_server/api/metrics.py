"""The endpoints for Prometheus: the cloud's metrics, and the addresses of edges and agents."""

from __future__ import annotations

from cloud_server.dependencies import TheCloud
from cloud_server.nodes.registry import Registry
from shared.core.records import Record
from shared.service.metrics import metrics_router
from shared.service.reverse.records import SCHEME


class TargetGroup(Record):
    """Addresses, with the labels that Prometheus adds to their metrics (its `http_sd_config`)."""

    targets: tuple[str, ...]
    labels: dict[str, str]


router = metrics_router(lambda request: request.app.state.cloud.metrics)
"""`GET /metrics` and `GET /metrics/targets`, with the API token or the token for metrics."""


@router.get("/metrics/targets", tags=["health"])
async def targets(cloud: TheCloud) -> tuple[TargetGroup, ...]:
    """The addresses of the live edges and agents, for the HTTP service discovery of Prometheus."""
    return tuple(groups(cloud.registry))


def groups(registry: Registry) -> list[TargetGroup]:
    """One group for each live edge, and one for all live agents that can be called."""
    edges = [
        TargetGroup(targets=(_address(registry.edges[edge].url),), labels={"tier": "edge", "edge": edge})
        for edge in registry.live_edges()
    ]
    live = [entry.url for agent, entry in registry.agents.items() if registry.agent_is_live(agent)]
    agents = sorted(_address(url) for url in live if not url.startswith(f"{SCHEME}:"))
    return [*edges, TargetGroup(targets=tuple(agents), labels={"tier": "agent"})]


def _address(url: str) -> str:
    return url.partition("://")[2]
