"""What a Prometheus asks the cloud: its metrics, and where those of edges and agents are."""

from __future__ import annotations

from fastapi import APIRouter

from cloud_server.dependencies import TheCloud, cloud_of
from cloud_server.nodes.registry import Registry
from cloud_server.settings import CloudSettings
from shared.core.records import Record
from shared.service.metrics import metrics_router


class TargetGroup(Record):
    """Addresses with the labels that a Prometheus gives to what it finds there (its `http_sd_config`)."""

    targets: tuple[str, ...]
    labels: dict[str, str]


def router_of(settings: CloudSettings) -> APIRouter:
    """`GET /metrics` and `GET /metrics/targets`, for whoever has the API token or the one for metrics."""
    token = settings.common.api_token
    router = metrics_router(settings, token, "API", lambda request: cloud_of(request).metrics)

    @router.get("/metrics/targets", tags=["health"])
    async def targets(cloud: TheCloud) -> tuple[TargetGroup, ...]:
        """Where the live edges and agents are, for Prometheus' discovery by HTTP."""
        return tuple(groups(cloud.registry))

    return router


def groups(registry: Registry) -> list[TargetGroup]:
    """A group for each live edge, and one of all live agents."""
    edges = [
        TargetGroup(targets=(_address(registry.edges[edge].url),), labels={"tier": "edge", "edge": edge})
        for edge in registry.live_edges()
    ]
    agents = sorted(_address(entry.url) for agent, entry in registry.agents.items() if registry.agent_is_live(agent))
    return [*edges, TargetGroup(targets=tuple(agents), labels={"tier": "agent"})]


def _address(url: str) -> str:
    return url.removeprefix("http://")
