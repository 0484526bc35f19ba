"""What the apps of the three tiers have in common: error answers, health, metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, FastAPI
from prometheus_client import CollectorRegistry, generate_latest
from starlette.responses import Response

from shared.core.versions import version
from shared.service.api.health import Health
from shared.service.auth import Guard, guard
from shared.service.openapi import describe
from shared.service.problems import install_problems
from shared.service.settings import TierSettings, log


def log_mode(tier: str, settings: TierSettings) -> None:
    """Logs a warning if a tier starts without the tokens that it would check (that of the API: the cloud only)."""
    tokens = {"tier": settings.common.tier_token} | ({"API": settings.common.api_token} if tier == "cloud" else {})
    missing = [name for name, token in tokens.items() if not token]
    if missing:
        log.warning(
            "%s: DEVELOPMENT MODE, no %s token set: only loopback and private networks are answered",
            tier,
            " and no ".join(missing),
        )


def make_app(
    title: str,
    lifespan: Callable[[FastAPI], Any] | None = None,
    *,
    routes: APIRouter | None = None,
    guards: dict[str, Guard] | None = None,
) -> FastAPI:
    """Returns a tier's app. `app.state.closing` is set when the server begins to stop.

    Args:
        title: of the app.
        lifespan: what the app does before its first request and after its last one.
        routes: a router that all apps with these routes share.
        guards: the guards that routes name (see `guarded`).
    """
    app = FastAPI(title=title, version=version(), lifespan=lifespan, routes=[*routes.routes] if routes else None)
    app.state.closing = asyncio.Event()
    app.state.guards = guards or {}
    app.openapi = describe(app)  # type: ignore[method-assign]
    install_problems(app)
    return app


def guards_of(settings: TierSettings, metrics_like: str = "tier") -> dict[str, Guard]:
    """Returns the guards of a tier's routes: `tier` and `API` want these tokens.

    The guard `metrics` wants the same token as the guard `metrics_like`, or the token for metrics.
    """
    networks, hosts = settings.allowed_networks, settings.allowed_hosts
    tokens = {"tier": settings.common.tier_token, "API": settings.common.api_token}
    found = {name: guard(token, networks, name, hosts=hosts) for name, token in tokens.items()}
    metrics = guard(tokens[metrics_like], networks, metrics_like, settings.common.metrics_token, hosts)
    return {**found, "metrics": metrics}


def metrics_response(registry: CollectorRegistry) -> Response:
    """Returns a tier's metrics in Prometheus' text format."""
    return Response(generate_latest(registry), media_type="text/plain; version=0.0.4; charset=utf-8")


def health(tier: str, missing: tuple[str, ...] = ()) -> Health:
    """Returns a health answer: `not_ready` while something is missing."""
    return Health(status="not_ready" if missing else "ok", tier=tier, version=version(), missing=missing)
